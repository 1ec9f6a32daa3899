"""Measuring what a round costs: the times of drafts and of passes on this machine, kept for the next start."""

from __future__ import annotations

import hashlib
import json
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers

from paceline.decode import Parts
from paceline.device_clock import device_clock, device_wait
from paceline.drafters.base import Drafter, DraftRequest
from paceline.embedded import cache_folder
from paceline.engine import Engine
from paceline.errors import CheckpointError
from paceline.metrics import StageClock
from paceline.policies.costs import Costs, Curve
from paceline.policies.fixed import FixedPolicy
from paceline.processor import processor_name
from paceline.records import read_json
from paceline.result_files import write_json
from paceline.target.base import Target
from paceline.tree import DraftTree, pack
from paceline.types import GenerationSettings

_ROWS = (1, 2, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Where kernels change their blocking, and twice the widest tree: batches are wider than it."""
_CONTEXTS = (64, 1024)
_REPEATS = 5
_PATIENCE_S = 15.0
"""For one curve, of which there are three at most."""
_ANSWER = 16
MAX_BUDGET_CPU, MAX_BUDGET = 32, 256
"""Most nodes that are worth measuring where the user names no budget."""


def default_max_budget(device: torch.device) -> int:
    """How many nodes a cost-aware tree may have at most."""
    return MAX_BUDGET_CPU if device.type == "cpu" else MAX_BUDGET


def costs_of(target: Target, drafter: Drafter, max_budget: int, pair: Mapping[str, str]) -> Costs:
    """The costs that were kept for this machine and pair, or measured now (a minute or less) and kept."""
    path = costs_path(target, drafter, max_budget, pair)
    with suppress(CheckpointError):  # damaged ones are measured again
        if path.exists():
            return Costs.from_json(read_json(path))
    costs = measure_costs(target, drafter, max_budget)
    if costs.is_steady:
        with suppress(OSError):  # where nothing can be kept, the next start measures again
            keep_costs(path, costs, target, drafter, max_budget, pair)
    else:
        warnings.warn(f"{unsteady(costs)}, so that they are not kept; the next start measures again.", stacklevel=2)
    return costs


def unsteady(costs: Costs) -> str:
    """What to say of costs that a busy machine gave."""
    if math.isinf(costs.unsteadiness):
        return "there was no time to measure the same pass twice: this machine is slow, or does something else too"
    return f"the same passes took {costs.unsteadiness:.1f} times as long at times: this machine does something else too"


def costs_path(target: Target, drafter: Drafter, max_budget: int, pair: Mapping[str, str]) -> Path:
    """Where costs are kept: named after all that they depend on."""
    return cache_folder() / "costs" / f"{fingerprint(target, drafter, max_budget, pair)}.json"


def keep_costs(
    path: Path, costs: Costs, target: Target, drafter: Drafter, max_budget: int, pair: Mapping[str, str]
) -> None:
    """Write costs with what they belong to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, costs.as_json() | {"measured_on": _circumstances(target, drafter, max_budget, pair)})


def fingerprint(target: Target, drafter: Drafter, max_budget: int, pair: Mapping[str, str]) -> str:
    """What the costs depend on: the pair, its dtype, the machine, and the versions at work."""
    text = json.dumps(_circumstances(target, drafter, max_budget, pair), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measure_costs(
    target: Target, drafter: Drafter, max_budget: int, report: Callable[[str], None] = lambda text: None
) -> Costs:
    """Time passes by rows and context, drafts by block size, and the rest of a round."""
    widest = min(2 * (1 + max_budget), max(2, target.info.max_context // 4))
    rows = tuple(r for r in _ROWS if r <= widest)
    longest = max(1, target.info.max_context - (_REPEATS + 1) * len(rows) - rows[-1])
    contexts = tuple(c for c in _CONTEXTS if c <= longest) or (longest,)
    passes: list[list[list[float]]] = []
    for context in contexts:
        started = perf_counter()
        report(f"passes after {context} tokens")
        passes.append(_verify_seconds(target, rows, context))
        if perf_counter() - started > _PATIENCE_S:  # a slow machine: longer contexts are taken to cost the same
            break
    contexts = contexts[: len(passes)]
    verify = tuple(_curve(rows, seconds) for seconds in passes)
    repeated = [repeats for seconds in passes for repeats in seconds]
    unsteadiness = median(max(r) / min(r) for r in repeated) if min(map(len, repeated)) > 1 else math.inf
    report("drafts")
    own = drafter.default_block_size
    sizes = tuple(sorted({2, max(2, own // 2), own, own + 2, 2 * own}))
    drafts = _draft_seconds(target, drafter, sizes, max_budget, contexts[0])
    report("the rest of a round")
    return Costs(contexts, verify, _curve(sizes, drafts), _other_seconds(target, drafter), unsteadiness)


def _curve(sizes: Sequence[int], seconds: Sequence[Sequence[float]]) -> Curve:
    """Medians, of the sizes that there was time for."""
    return Curve(tuple(sizes[: len(seconds)]), tuple(map(median, seconds)))


def _verify_seconds(target: Target, rows: Sequence[int], context: int) -> list[list[float]]:
    """Seconds of passes over each number of rows; each commits its root, which hardly adds to it."""
    rng = random.Random(0)
    cache = target.new_cache(1, context + (_REPEATS + 1) * len(rows) + rows[-1])
    target.prefill(cache, 0, _tokens(target, rng, context))

    def once(count: int) -> float:
        packed = pack([_chain(target, rng, count - 1)], torch.tensor(_tokens(target, rng, 1))).to(target.info.device)
        seconds = _timed(target, lambda: target.verify(cache, packed))
        cache.keep([[]])
        return seconds

    return _repeated(rows, once)


def _draft_seconds(
    target: Target, drafter: Drafter, block_sizes: Sequence[int], budget: int, context: int
) -> list[list[float]]:
    """Seconds of drafts of each block size, growth of the tree included."""
    room = 2 * (_REPEATS + 1) * len(block_sizes) + 2 * block_sizes[-1]
    text = _tokens(target, random.Random(0), context + 1 + room, drafter.num_readable)
    state = drafter.new_state(1, context + room, target.info.device)
    features = target.prefill(target.new_cache(1, context), 0, text[:context], drafter.feature_layers).features
    read = context
    if features is not None:
        drafter.observe(state, 0, features, [context])
    clock = StageClock()

    def once(block_size: int) -> float:
        nonlocal read
        added = min(2, context)
        if features is not None:
            drafter.observe(state, 0, features[:, :added], [added])  # what a round adds
        read += added
        request = DraftRequest(text[: read + 1], block_size, budget, budget)
        return _timed(target, lambda: drafter.draft(state, [request], clock))

    return _repeated(block_sizes, once)


def _other_seconds(target: Target, drafter: Drafter) -> float:
    """Seconds of a round outside both models."""
    clock = device_clock(target.info.device)
    policy = FixedPolicy(drafter.default_block_size, drafter.default_tree_budget)
    engine = Engine(Parts(target, drafter, policy), max_batch=1, clock=clock)
    prompt = _tokens(target, random.Random(0), min(32, target.info.max_context // 2), drafter.num_readable)
    request = engine.submit(prompt, GenerationSettings(max_tokens=_ANSWER, ignore_eos=True))
    engine.run()
    other = sum(seconds for stage, seconds in clock.seconds.items() if stage not in ("draft", "grow", "verify"))
    return other / max(1, request.statistics.rounds)


def _repeated(sizes: Sequence[int], once: Callable[[int], float]) -> list[list[float]]:
    """Seconds of each size, several times; the sizes take turns, and the first turn is not counted.

    Where that would take longer than `_PATIENCE_S`, there are fewer turns, and in the end fewer sizes: of those that
    there was time for, the smallest.
    """
    deadline = perf_counter() + _PATIENCE_S
    turns: list[list[float]] = []
    turn: list[float] = []
    for _ in range(_REPEATS + 1):
        turn = []
        for size in sizes:
            if perf_counter() > deadline and (turns or len(turn) >= 2):
                break
            turn.append(once(size))
        if len(turn) < len(sizes):
            break
        turns.append(turn)
    return [list(repeats) for repeats in zip(*(turns[1:] or turns or [turn]), strict=True)]


def _timed(target: Target, work: Callable[[], Any]) -> float:
    wait = device_wait(target.info.device) or (lambda: None)
    wait()
    started = perf_counter()
    work()
    wait()
    return perf_counter() - started


def _tokens(target: Target, rng: random.Random, count: int, most: int | None = None) -> list[int]:
    """Random ones, of the first `most`."""
    return [rng.randrange(min(target.info.vocab_size, most or target.info.vocab_size)) for _ in range(count)]


def _chain(target: Target, rng: random.Random, count: int) -> DraftTree:
    return DraftTree(
        torch.tensor(_tokens(target, rng, count), dtype=torch.int64), torch.arange(count), torch.zeros(count)
    )


def _circumstances(target: Target, drafter: Drafter, max_budget: int, pair: Mapping[str, str]) -> dict[str, Any]:
    device = target.info.device
    return {
        "target": pair["target_digest"],
        "drafter": pair["drafter_digest"],
        "drafting": drafter.drafting,
        "dtype": str(target.info.dtype),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": processor_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "paceline": version("paceline"),
        "max_budget": max_budget,
    }
