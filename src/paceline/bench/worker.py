"""Loads what a bench needs, once in each process that works on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers.utils import logging

from paceline.bench.config import BenchConfig
from paceline.bench.judging.judge import working_judge
from paceline.bench.measurement import Measurement
from paceline.bench.method import HF, Method
from paceline.bench.methods import HF_DFLASH, Drafting, build_methods, sizes_used
from paceline.bench.pinning import pin
from paceline.bench.results import MethodFacts
from paceline.bench.run import WARM_UP_TOKENS, Bench
from paceline.bench.sized import sized
from paceline.embedded import embedded_target
from paceline.loading import load
from paceline.near_ties import MAX_GAP_ULPS
from paceline.prompts import Prompt, check_length
from paceline.provenance import provenance
from paceline.sources import NO_DRAFTER, pair_digests
from paceline.target_loading import load_hugging_face
from paceline.text_model import Model


@dataclass(frozen=True)
class Worker:
    """A loaded and warmed-up bench, and what a reader must know of it."""

    bench: Bench
    facts: dict[str, Any]

    def head(self) -> tuple[dict[str, Any], list[MethodFacts]]:
        """Facts of the run, and its methods."""
        return self.facts, [MethodFacts.of(method) for method in self.bench.methods]

    def __call__(self, numbered: tuple[int, Prompt]) -> tuple[dict[str, Any], list[MethodFacts], list[Measurement]]:
        """The head, and what was measured on the prompt of this number."""
        return *self.head(), self.bench(numbered)


def make_worker(config: BenchConfig, report: Callable[[str], None] = print, part: int | None = 0) -> Worker:
    """Load the models, build the methods, check the prompts' lengths, warm up.

    `part` is this process's number among those on the machine; None leaves its threads where they are.

    Raises:
        InputError: a model, drafter, method, prompt or judge that cannot be used.
    """
    logging.disable_progress_bar()
    pinned = "left to Ray" if part is None else pin(config.threads, part)
    if config.target is None:
        embedded_target(report=report)
    model = load(
        config.target,
        NO_DRAFTER,
        dtype=config.dtype,
        device=config.device,
        threads=config.threads,
        thinking=config.thinking,
    )
    reference = None
    if {HF, HF_DFLASH} & set(config.methods):
        reference = load_hugging_face(config.target, config.dtype, config.device)
    methods = _methods(config, model, reference)
    for prompt in config.prompts:
        check_length(prompt, len(model.encode(prompt.text)), model.target.info.max_context)
    judge = working_judge(config.judged) if config.judged else None
    bench = Bench(model, methods, config.requests(), config.repeats, judge)
    report(f"warming up {len(methods)} methods")
    bench.warm_up(config.prompts[0])
    return Worker(bench, _facts(config, model, pinned))


def _methods(config: BenchConfig, model: Model, reference: Any) -> list[Method]:
    queries = 1 + config.num_answers
    drafting = Drafting(config.drafters, config.tree_budget, config.block_size, config.policies, queries)
    methods = build_methods(config.methods, model, reference, drafting, functools.partial(pair_digests, config.target))
    return [
        each
        for method in methods
        for each in ([method] if method.policy else sized(method, sizes_used(method.family), config.sweeps))
    ]


def _facts(config: BenchConfig, model: Model, pinned: str) -> dict[str, Any]:
    facts = provenance(model.target.info, model.tokenizer, list(config.command), model.thinking)
    facts["target_digest"] = pair_digests(config.target, NO_DRAFTER)["target_digest"]
    facts["prompts"] = len(config.prompts)
    swept = {sweep.name for sweep in config.sweeps}
    facts |= {name: getattr(config.asking, name) for name in ("temperature", "max_tokens") if name not in swept}
    if config.asking.grammar is not None:
        facts["grammar"] = f"{config.asking.grammar.kind}: {config.asking.grammar.source}"
    facts |= {"batch": 1, "repeats": config.repeats, "warm-up": f"{WARM_UP_TOKENS} tokens per method"}
    facts["processor cores"] = pinned
    facts["near-tie"] = f"a gap of at most {MAX_GAP_ULPS} units in the last place of the best logit"
    return facts
