"""Several results files as one: what may be compared is put together, all else is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.bench.measurement import Measurement
from paceline.bench.method import HF, PLAIN
from paceline.bench.results import COMPARABLE, MethodFacts, Results, read_results
from paceline.errors import InputError

_MACHINE = ("processor", "accelerator", "threads", "torch", "transformers")


@dataclass(frozen=True)
class Gathered:
    """The measurements of several runs, each with its run's number, and what a reader must know of them."""

    files: tuple[str, ...]
    provenance: tuple[Mapping[str, Any], ...]
    methods: tuple[MethodFacts, ...]
    measurements: tuple[tuple[int, Measurement], ...]
    warnings: tuple[str, ...]

    @property
    def sets(self) -> list[str]:
        """Names of the prompt sets, in the order in which they come."""
        return list(dict.fromkeys(x.prompt.set_name for _, x in self.measurements))


def gather(paths: Sequence[Path]) -> Gathered:
    """Read the files; a method that several of them have is told apart by the file's name.

    Raises:
        InputError: no file, one twice, or runs that differ in what their numbers depend on.
        CheckpointError: a file that no bench wrote, or without a measurement.
    """
    if not paths:
        raise InputError("no results came; name files that `paceline bench --results` wrote.")
    if len({path.absolute() for path in paths}) < len(paths):
        raise InputError("a results file is named twice; name each once.")
    runs = [read_results(path) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        _check_comparable(path, run, paths[0], runs[0])
        if not run.by_prompt:
            raise InputError(f"{str(path)!r} holds no measurement yet; let its bench measure a prompt first.")
    named = _names(paths, runs)
    methods: dict[str, MethodFacts] = {}
    found = []
    for number, run in enumerate(runs):
        for facts in run.methods:
            methods.setdefault(named[number, facts.name], MethodFacts(named[number, facts.name], facts.settings))
        found += [(number, replace(x, method=named[number, x.method])) for x in run.measurements]
    return Gathered(
        tuple(path.name for path in paths),
        tuple(run.provenance for run in runs),
        tuple(methods.values()),
        tuple(found),
        tuple(_warnings(paths, runs)),
    )


def _check_comparable(path: Path, run: Results, first: Path, other: Results) -> None:
    for name in COMPARABLE:
        ours, theirs = run.provenance.get(name), other.provenance.get(name)
        if ours != theirs:
            raise InputError(
                f"{str(first)!r} and {str(path)!r} differ in {name} ({theirs} and {ours}), so that their numbers "
                "cannot be compared; report each by itself."
            )


def _names(paths: Sequence[Path], runs: Sequence[Results]) -> dict[tuple[int, str], str]:
    """What each run's methods are called beside the others'."""
    everywhere = [m.name for run in runs for m in run.methods]
    return {
        (number, m.name): m.name
        if m.name in (PLAIN, HF) or everywhere.count(m.name) == 1
        else f"{m.name} [{paths[number].stem}]"
        for number, run in enumerate(runs)
        for m in run.methods
    }


def _warnings(paths: Sequence[Path], runs: Sequence[Results]) -> list[str]:
    found = []
    for name in _MACHINE:
        values = list(dict.fromkeys(str(run.provenance.get(name)) for run in runs))
        if len(values) > 1:
            found.append(
                f"The runs differ in {name} ({', '.join(values)}): speed-ups are over each run's own plain decoding, "
                "tokens/s do not compare."
            )
    for path, run in zip(paths, runs, strict=True):
        missing = len(run.settings.get("prompts", ())) - len(run.by_prompt)
        if missing > 0:
            found.append(f"{path.name} is not complete: {missing} prompts have not been measured.")
        if PLAIN not in {m.name for m in run.methods}:
            found.append(f"{path.name} has no plain decoding, so that its methods have no speed-up.")
    return found
