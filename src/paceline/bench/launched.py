"""One bench in several processes that `accelerate launch` or `torchrun` started, each with a GPU of its own.

Every process measures its share of the prompts into a file beside the results; the first one joins them at the end.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.bench.config import BenchConfig
from paceline.bench.results import Results, append, begin, read_results, resumed
from paceline.bench.work import Found, Numbered, measure_missing
from paceline.bench.worker import make_worker
from paceline.errors import InputError

if TYPE_CHECKING:
    from accelerate import PartialState


def is_launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()


def measure_launched(config: BenchConfig, path: Path | None) -> Results | None:
    """Measure this process's share; all results in the first process, nothing in the others.

    Raises:
        InputError: no file for the results, or no accelerate.
    """
    if path is None:
        raise InputError("several processes were launched, which meet in a file only; add --results OUT.jsonl.")
    if importlib.util.find_spec("accelerate") is None:
        raise InputError("several processes need the package accelerate; pip install 'paceline[train]'.")
    from accelerate import PartialState

    state = PartialState()
    try:
        return _measure(config, path, state)
    finally:
        state.destroy_process_group()


def _measure(config: BenchConfig, path: Path, state: PartialState) -> Results | None:
    own = config if config.device is not None else config.on(str(state.device))
    if state.is_main_process:
        _join(config, path)  # what a killed run left
    state.wait_for_everyone()
    there = resumed(path, config.settings())
    done = set() if there is None else set(there.by_prompt)
    missing = [numbered for numbered in enumerate(config.prompts) if numbered[0] not in done]
    mine = missing[state.process_index :: state.num_processes]
    if mine:
        measure_missing(config, _part(path, state.process_index), lambda _: _share(own, mine), _say_nothing)
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    _join(config, path)
    return read_results(path)


def _share(config: BenchConfig, mine: Iterable[Numbered]) -> Iterator[tuple[Numbered, Found]]:
    worker = make_worker(config, _say_nothing)
    for numbered in mine:
        yield numbered, worker(numbered)


def _say_nothing(*progress: object) -> None:
    """Several processes share one terminal."""


def _part(path: Path, index: int) -> Path:
    return path.with_name(f".{path.name}.part{index}")


def _join(config: BenchConfig, path: Path) -> None:
    """Move the lines of every part to the results; a part is removed once its lines are there."""
    for part in sorted(path.parent.glob(f".{path.name}.part*")):
        found = resumed(part, config.settings())
        if found is not None:
            there = resumed(path, config.settings())
            held = set() if there is None else set(there.by_prompt)
            begin(path, found, there)
            for number in sorted(set(found.by_prompt) - held):
                append(path, number, found.by_prompt[number])
        part.unlink()
