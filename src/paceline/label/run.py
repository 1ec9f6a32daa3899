"""The labelling run: what is missing is decoded, each label written as soon as it is there.

Killed at any moment, the same call goes on with the prompts that have no label yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.labels import Label, label_path, read_label, write_label
from paceline.prompts import Prompt
from paceline.records import RECORDING, check_settings, exclusive, read_json, write_text

Map = Callable[[Iterable[Prompt]], Iterator[tuple[Prompt, Label]]]
"""Labels prompts, here or elsewhere, and yields them as they are done."""


def label_prompts(
    out: Path,
    prompts: Sequence[Prompt],
    settings: dict[str, Any],
    map_prompts: Map,
    report: Callable[[int, int], None],
) -> int:
    """Label every prompt that `out` has no label of; how many there were to do.

    `settings` are what the labels depend on, as JSON has them; `report` is told (done, total) after each one.

    Raises:
        InputError: another process at work in `out`, or a folder that was begun with other settings.
        CheckpointError: a label there is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        _settle(out, settings)
        different = {label_path(out, prompt): prompt for prompt in prompts}
        for path in different:
            if path.exists():
                read_label(path)  # a damaged one is said now, not when it is wanted
        missing = {path: prompt for path, prompt in different.items() if not path.exists()}
        done = len(different) - len(missing)
        report(done, len(different))
        if missing:
            for prompt, label in map_prompts(missing.values()):
                write_label(label_path(out, prompt), label)
                done += 1
                report(done, len(different))
    return len(missing)


def _settle(out: Path, settings: dict[str, Any]) -> None:
    """Record the settings of a new folder, or check them against the folder's own."""
    path = out / RECORDING
    if path.exists():
        check_settings(out, settings, read_json(path), frozenset({"threads"}))
    else:
        write_text(path, json.dumps(settings, indent=1) + "\n")
