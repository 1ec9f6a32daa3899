"""The work of a bench: what is missing is measured, here or elsewhere, and kept as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from paceline.bench.config import BenchConfig
from paceline.bench.measurement import Measurement
from paceline.bench.results import MethodFacts, Results, append, begin, resumed
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
        InputError: a file that was begun with other settings, or where something else is.
        CheckpointError: a file that is something else.
    """
    settings = config.settings()
    there = resumed(path, settings) if path is not None else None
    done = set() if there is None else set(there.by_prompt)
    missing = [(number, prompt) for number, prompt in enumerate(config.prompts) if number not in done]
    report(len(done), len(config.prompts))
    found = there
    for (number, _), (facts, methods, measurements) in map_prompts(missing) if missing else ():
        head = Results(settings, facts, methods)
        if path is not None:
            found = begin(path, head, found)
            append(path, number, measurements)
        found = found or head
        found.by_prompt[number] = measurements
        done.add(number)
        report(len(done), len(config.prompts))
    assert found is not None, "there is a prompt"
    return found
