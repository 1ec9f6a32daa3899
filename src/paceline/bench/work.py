"""The work of a bench: what is missing is measured, here or elsewhere, and kept as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from paceline.bench.config import BenchConfig
from paceline.bench.measurement import Measurement
from paceline.bench.results import (
    MethodFacts,
    Results,
    append,
    begin,
    check_alike,
    cut_unfinished,
    only_one,
    resumed,
)
from paceline.prompts import Prompt

Numbered = tuple[int, Prompt]
Found = tuple[dict[str, Any], list[MethodFacts], list[Measurement]]
Map = Callable[[Iterable[Numbered]], Iterator[tuple[Numbered, Found]]]
"""Measures prompts, here or elsewhere, and yields what a worker gave as it is done."""


def measure_missing(
    config: BenchConfig, path: Path | None, map_prompts: Map, report: Callable[[int, int], None]
) -> Results:
    """Measure every prompt that the file has no line of; all that it holds then.

    Without a file, everything is measured and nothing kept. `report` is told (done, total) after each prompt.

    Raises:
        InputError: a file that was begun with other settings or elsewhere, or that another process writes to.
        CheckpointError: a file that is something else.
    """
    settings = config.settings()
    with only_one(path):
        found = resumed(path, settings)
        done = set() if found is None else set(found.by_prompt)
        missing = [(number, prompt) for number, prompt in enumerate(config.prompts) if number not in done]
        report(len(done), len(config.prompts))
        if path is not None and found is not None and missing:
            cut_unfinished(path)
        for (number, _), (facts, methods, measurements) in map_prompts(missing) if missing else ():
            found = _kept(path, found, Results(settings, facts, methods), number, measurements)
            done.add(number)
            report(len(done), len(config.prompts))
    assert found is not None, "there is a prompt"
    return found


def _kept(
    path: Path | None, there: Results | None, now: Results, number: int, measurements: list[Measurement]
) -> Results:
    """All results with one prompt's, on the disk first."""
    if there is None:
        there = now
        if path is not None:
            begin(path, now)
    else:
        check_alike(path, there, now)
    if path is not None:
        append(path, number, measurements)
    there.by_prompt[number] = measurements
    return there
