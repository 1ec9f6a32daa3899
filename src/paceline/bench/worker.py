"""Loads what a bench needs, once in each process that works on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.bench.config import BenchConfig
from paceline.bench.judging.judge import Judge
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

    def __call__(self, numbered: tuple[int, Prompt]) -> tuple[dict[str, Any], list[MethodFacts], list[Measurement]]:
        """Facts of the run and its methods, and what was measured on the prompt of this number."""
        return self.facts, [MethodFacts(m.name, m.settings) for m in self.bench.methods], self.bench(numbered)


def make_worker(config: BenchConfig, report: Callable[[str], None] = print) -> Worker:
    """Load the models, build the methods, check the prompts' lengths, warm up.

    Raises:
        InputError: a model, drafter, method or prompt that cannot be used.
    """
    pinned = pin(config.threads)
    if config.target is None:
        embedded_target(report=report)
    model = load(config.target, NO_DRAFTER, dtype=config.dtype, device=config.device, threads=config.threads)
    reference = None
    if {HF, HF_DFLASH} & set(config.methods):
        reference = load_hugging_face(config.target, config.dtype, config.device)
    bench = Bench(
        model,
        _methods(config, model, reference),
        config.requests(),
        config.repeats,
        Judge(config.judged) if config.judged else None,
    )
    for prompt in config.prompts:
        check_length(prompt, len(model.encode(prompt.text)), model.target.info.max_context)
    bench.warm_up(config.prompts[0])
    return Worker(bench, _facts(config, model, pinned))


def _methods(config: BenchConfig, model: Model, reference: Any) -> list[Method]:
    queries = 1 + config.num_answers
    drafting = Drafting(config.drafters, config.tree_budget, config.block_size, config.policies, queries)
    methods = build_methods(config.methods, model, reference, drafting, functools.partial(pair_digests, config.target))
    return [each for method in methods for each in sized(method, sizes_used(method.name), config.sweeps)]


def _facts(config: BenchConfig, model: Model, pinned: str) -> dict[str, Any]:
    facts = provenance(model.target.info, model.tokenizer, list(config.command))
    facts["target_digest"] = pair_digests(config.target, NO_DRAFTER)["target_digest"]
    facts |= {"prompts": len(config.prompts), "max_tokens": config.asking.max_tokens}
    facts["temperature"] = config.asking.temperature
    if config.asking.grammar is not None:
        facts["grammar"] = f"{config.asking.grammar.kind}: {config.asking.grammar.source}"
    facts |= {"batch": 1, "repeats": config.repeats, "warm-up": f"{WARM_UP_TOKENS} tokens per method"}
    facts["processor cores"] = pinned
    facts["near-tie"] = f"a gap of at most {MAX_GAP_ULPS} units in the last place of the best logit"
    return facts
