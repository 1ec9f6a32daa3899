"""The file that a bench appends to: JSON Lines, a head and then one line for every prompt.

    {"format": 1, "settings": {...}, "provenance": {...}, "methods": [{"name", "settings", ...}, ...]}
    {"number": 0, "answers": [{"method", "set", "id", "turn", "asked", "tokens", ...}, ...]}

A line is there whole or not at all, so that a killed bench goes on with the prompts that have none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.bench.measurement import Measurement, Request, as_json
from paceline.bench.method import Method
from paceline.bench.rows import FORMAT, HeadRow, PromptRow, in_one_sentence
from paceline.bench.sweep import BLOCK_SIZE, TREE_BUDGET
from paceline.errors import CheckpointError, InputError
from paceline.result_files import write_text

#: What two runs must have in common for their numbers to be compared.
COMPARABLE = ("target_digest", "dtype", "chat_template_sha256", "thinking_mode", "grammar")
_LONG = 200
"""Characters that are too many to be read in a sentence."""
#: What a run that goes on must find as it was, beside what is comparable.
_OF_THE_MACHINE = ("accelerator", "threads", "processor", "torch", "transformers")


@dataclass(frozen=True)
class MethodFacts:
    """A method as a reader knows it: as `Method` says, but for what answers."""

    name: str
    settings: Mapping[str, Any]
    family: str = ""
    policy: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(method: Method) -> MethodFacts:
        return MethodFacts(method.name, dict(method.settings), method.family, method.policy, dict(method.sizes))

    @property
    def plan(self) -> str:
        """What tells a method from the others of its family."""
        said = {TREE_BUDGET: "{} nodes", BLOCK_SIZE: "block {}"}
        sizes = [form.format(self.sizes[name]) for name, form in said.items() if name in self.sizes]
        return ", ".join([*([self.policy] if self.policy else []), *sizes])


@dataclass
class Results:
    """What a file holds: how it was made, and the measurements by the number of the prompt."""

    settings: dict[str, Any]
    provenance: dict[str, Any]
    methods: list[MethodFacts]
    by_prompt: dict[int, list[Measurement]] = field(default_factory=dict)

    @property
    def measurements(self) -> list[Measurement]:
        """In the order of the prompts."""
        return [x for number in sorted(self.by_prompt) for x in self.by_prompt[number]]


def read_results(path: Path) -> Results:
    """A file that a bench wrote; an unfinished last line, which a kill leaves, is not read.

    Raises:
        CheckpointError: no such file, or another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise CheckpointError(f"the results {str(path)!r} cannot be read: {reason}.") from error
    number = 1
    try:
        results = _head(lines[0])
        for number, line in enumerate(lines[1:-1], start=2):  # noqa: B007 (the sentence below names it)
            _add(results, PromptRow.model_validate_json(line))
    except ValueError as error:
        raise CheckpointError(
            f"{str(path)!r}, line {number} is not as a bench writes it ({in_one_sentence(error)}); give a file that "
            "`paceline bench --results` wrote, or measure again into another one."
        ) from error
    return results


def _head(line: str) -> Results:
    head = HeadRow.model_validate_json(line)
    if head.format != FORMAT:
        raise ValueError(f"its format is {head.format}, but this version reads {FORMAT}")
    methods = [MethodFacts(**method.model_dump()) for method in head.methods]
    return Results(head.settings.model_dump(), head.provenance.model_dump(), methods)


def _add(results: Results, row: PromptRow) -> None:
    measured = row.measurements()
    if strange := {x.method for x in measured} - {m.name for m in results.methods}:
        raise ValueError(f"its head does not know {min(strange)}")
    if row.number in results.by_prompt:
        raise ValueError(f"it has prompt {row.number} twice")
    if row.number >= len(results.settings["prompts"]):
        raise ValueError(f"its head has no prompt {row.number}")
    results.by_prompt[row.number] = measured


@contextmanager
def only_one(path: Path | None) -> Iterator[None]:
    """Nobody else appends to this file meanwhile; a process that dies frees it.

    Raises:
        InputError: another process does.
    """
    if path is None:
        yield
        return
    lock = FileLock(lock_of(path), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(
            f"another bench is writing to {str(path)!r}; wait for it to end, or give another file."
        ) from error
    try:
        yield
    finally:
        lock.release()


def lock_of(path: Path) -> Path:
    """The file that says who writes to a results file; it stays beside it."""
    return path.with_name(f".{path.name}.lock")


def resumed(path: Path | None, settings: Mapping[str, Any]) -> Results | None:
    """What a file holds of a run with these settings; None where there is none yet.

    Raises:
        InputError: it was begun with other settings; the first of them is named.
        CheckpointError: the file is something else.
    """
    if path is None or not path.exists() or path.stat().st_size == 0:
        return None
    there = read_results(path)
    _refuse_others(path, there.settings, settings, tuple(settings))
    return there


def begin(path: Path, head: Results) -> None:
    """A new file with its head."""
    methods = [vars(m) for m in head.methods]
    row = {"format": FORMAT, "settings": head.settings, "provenance": head.provenance, "methods": methods}
    write_text(path, json.dumps(row) + "\n")


def check_alike(path: Path | None, there: Results, now: Results) -> None:
    """Refuse to put measurements together whose times or texts depend on other things.

    Raises:
        InputError: another target, drafter, machine or version; what differs is named.
    """
    _refuse_others(path, there.provenance, now.provenance, (*COMPARABLE, *_OF_THE_MACHINE))
    before, after = ({m.name: json.loads(json.dumps(vars(m))) for m in run.methods} for run in (there, now))
    for name in before:
        ours, theirs = after.get(name, {}).get("settings", {}), before[name]["settings"]
        _refuse_others(path, theirs, ours, tuple(theirs), f" of {name}")


def _refuse_others(
    path: Path | None, before: Mapping[str, Any], now: Mapping[str, Any], names: Sequence[str], of: str = ""
) -> None:
    for name in names:
        if before.get(name) == now.get(name):
            continue
        where = f"the results in {str(path)!r}" if path is not None else "the first results"
        was, is_now = (str(found.get(name)) for found in (before, now))
        what = f"{name}{of} = {was} but it is {is_now} now" if len(was + is_now) < _LONG else f"other {name}{of}"
        raise InputError(
            f"{where} were begun with {what}; repeat the run as it was (on a machine like that) to go on with it, or "
            "give another file."
        )


def cut_unfinished(path: Path) -> None:
    """Remove what a kill left of a line."""
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        with path.open("r+b") as file:
            file.truncate(whole)


def append(path: Path, number: int, measurements: Sequence[Measurement]) -> None:
    """One prompt's line, on the disk when this returns."""
    line = json.dumps({"number": number, "answers": [as_json(x) for x in measurements]}) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def asked_apart(measurements: Sequence[Measurement]) -> list[tuple[dict[str, float], list[Measurement]]]:
    """Measurements of the same request together, in the order in which requests first come."""
    groups: dict[Request, list[Measurement]] = {}
    for x in measurements:
        groups.setdefault(x.request, []).append(x)
    return [(dict(asked), done) for asked, done in groups.items()]
