"""The labelling run: what is missing is decoded, each label written as soon as it is there.

Killed at any moment, the same call goes on with the prompts that have no label yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import InputError, PromptTooLongError
from paceline.labels import Label, check_alike, label_path, read_label, write_label
from paceline.prompts import Prompt
from paceline.records import RECORDING, check_settings, exclusive, read_json
from paceline.result_files import write_text

Map = Callable[[Iterable[Prompt]], Iterator[tuple[Prompt, Label | PromptTooLongError]]]
"""Labels prompts, here or elsewhere, and yields them as they are done."""
_MAY_CHANGE = frozenset({"threads", "target", "drafter", "device"})


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
        PromptTooLongError: a prompt leaves no room for an answer; all others are labelled before this is said.
        CheckpointError: a label there is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        _check(out, settings)
        different = {label_path(out, prompt): prompt for prompt in prompts}
        there = [read_label(path) for path in different if path.exists()]  # a damaged one is said now
        missing = [prompt for path, prompt in different.items() if not path.exists()]
        done = len(different) - len(missing)
        report(done, len(different))
        refused = None
        for prompt, label in map_prompts(missing) if missing else ():
            if isinstance(label, PromptTooLongError):
                refused = refused or label
                continue
            check_alike([*there[:1], label], out)
            _keep(out, settings)
            write_label(label_path(out, prompt), label)
            done += 1
            report(done, len(different))
        if refused is not None:
            raise refused
    return len(missing)


def _check(out: Path, settings: dict[str, Any]) -> None:
    """Refuse a folder that was begun with other settings. Paths may be spelled otherwise: digests say what they are."""
    if (out / RECORDING).exists():
        check_settings(out, settings, read_json(out / RECORDING), _MAY_CHANGE)
    elif any(out.glob("*.safetensors")):
        raise InputError(
            f"{out} holds safetensors files but no {RECORDING}, so how they were made is unknown; give another folder."
        )


def _keep(out: Path, settings: dict[str, Any]) -> None:
    """Record the settings with the first label, not before: what failed to load makes no beginning."""
    if not (out / RECORDING).exists():
        write_text(out / RECORDING, json.dumps(settings, indent=1) + "\n")
