"""One bench in several processes that `accelerate launch` or `torchrun` started, each with a GPU of its own.

Every process measures its share of the prompts into a file beside the results; the first one joins them at the end.
"""

from __future__ import annotations

import glob
import importlib.util
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.bench.config import BenchConfig
from paceline.bench.results import (
    Results,
    append,
    begin,
    check_alike,
    cut_unfinished,
    lock_of,
    only_one,
    read_results,
    resumed,
)
from paceline.bench.work import Found, Numbered, measure_missing
from paceline.bench.worker import Worker, make_worker
from paceline.errors import InputError

if TYPE_CHECKING:
    from accelerate import PartialState

_PATIENCE = timedelta(days=30)
"""How long a process waits for the others at the end: shares differ."""


def is_launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()


def measure_launched(config: BenchConfig, path: Path | None) -> Results | None:
    """Measure this process's share; all results in the first process, nothing in the others.

    Raises:
        InputError: no file for the results, no accelerate, a device for all, or another bench at work in the file.
    """
    if path is None:
        raise InputError("several processes were launched, which meet in a file only; add --results OUT.jsonl.")
    if importlib.util.find_spec("accelerate") is None:
        raise InputError("several processes need the package accelerate; pip install 'paceline[train]'.")
    if config.device not in (None, "cpu"):
        raise InputError(f"device {config.device!r} came, but a launcher gives every process its own; leave it out.")
    from accelerate import PartialState

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nobody else would end a process that waits for the others
    has_none = not torch.accelerator.is_available()  # accelerate then takes every process for the only one
    state = PartialState(cpu=has_none or config.device == "cpu", timeout=_PATIENCE)
    try:
        with only_one(path if state.is_main_process else None):
            return _measure(config, path, state)
    finally:
        state.destroy_process_group()


def _measure(config: BenchConfig, path: Path, state: PartialState) -> Results | None:
    own = config if config.device is not None else replace(config, device=str(state.device))
    if state.is_main_process:
        _join(config, path)  # what a killed run left
    state.wait_for_everyone()
    there = resumed(path, config.settings())
    done = set() if there is None else set(there.by_prompt)
    missing = [numbered for numbered in enumerate(config.prompts) if numbered[0] not in done]
    if missing:
        worker = make_worker(own, _say_nothing, state.local_process_index)
        _check_all_alike(config, path, worker)
        mine = missing[state.process_index :: state.num_processes]
        if mine:
            measure_missing(config, _part(path, state.process_index), lambda _: _share(worker, mine), _say_nothing)
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    _join(config, path)
    return read_results(path)


def _check_all_alike(config: BenchConfig, path: Path, worker: Worker) -> None:
    """Refuse in every process, before the work, what could not be joined after it."""
    from accelerate.utils import gather_object

    heads = [Results(config.settings(), *head) for head in gather_object([worker.head()])]
    for head in heads[1:]:
        check_alike(None, heads[0], head)


def _share(worker: Worker, mine: Iterable[Numbered]) -> Iterator[tuple[Numbered, Found]]:
    for numbered in mine:
        yield numbered, worker(numbered)


def _say_nothing(*progress: object) -> None:
    """Several processes share one terminal."""


def _part(path: Path, index: int) -> Path:
    return path.with_name(f".{path.name}.part{index}")


def _join(config: BenchConfig, path: Path) -> None:
    """Move the lines of every part to the results; a part is removed once its lines are there."""
    for part in sorted(path.parent.glob(f".{glob.escape(path.name)}.part*")):
        found = resumed(part, config.settings())
        if found is not None:
            there = resumed(path, config.settings())
            if there is None:
                begin(path, found)
            else:
                check_alike(path, there, found)
                cut_unfinished(path)
            held = set() if there is None else set(there.by_prompt)
            for number in sorted(set(found.by_prompt) - held):
                append(path, number, found.by_prompt[number])
        part.unlink()
        lock_of(part).unlink(missing_ok=True)
