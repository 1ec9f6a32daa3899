"""Several results files as one: what may be compared is put together, all else is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.bench.measurement import Measurement
from paceline.bench.method import HF, PLAIN
from paceline.bench.results import COMPARABLE, MethodFacts, Results, read_results
from paceline.bench.wording import counted
from paceline.errors import InputError

_LONG = 60
"""Characters that are too many for a name."""
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
    """Read the files; a method that several of them have is told apart by its settings, or else by the file's name.

    Raises:
        InputError: no file, one twice, or runs that differ in what their numbers depend on.
        CheckpointError: a file that no bench wrote, or without a measurement.
    """
    if not paths:
        raise InputError("no results came; name files that `paceline bench --results` wrote.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("a results file is named twice; name each once.")
    runs = [read_results(path) for path in paths]
    _refuse_copies(paths, runs)
    for path, run in zip(paths, runs, strict=True):
        _check_comparable(path, run, paths[0], runs[0])
        if not run.by_prompt:
            raise InputError(f"{str(path)!r} holds no measurement yet; let its bench measure a prompt first.")
    methods: dict[str, MethodFacts] = {}
    found = []
    for number, (label, run) in enumerate(zip(_labels(paths), runs, strict=True)):
        own = {m.name: m for m in run.methods} | _told_apart(number, runs, label)
        for facts in own.values():
            methods.setdefault(facts.name, facts)
        found += [(number, replace(x, method=own[x.method].name)) for x in run.measurements]
    return Gathered(
        tuple(_labels(paths)),
        tuple(run.provenance for run in runs),
        tuple(methods.values()),
        tuple(found),
        tuple(_warnings(paths, runs, found)),
    )


def _refuse_copies(paths: Sequence[Path], runs: Sequence[Results]) -> None:
    """Measurements would count twice."""
    for number, run in enumerate(runs):
        for path, other in zip(paths[:number], runs, strict=False):
            if run == other:
                raise InputError(f"{str(path)!r} and {str(paths[number])!r} hold the same measurements; leave one out.")


def _check_comparable(path: Path, run: Results, first: Path, other: Results) -> None:
    for name in COMPARABLE:
        ours, theirs = run.provenance.get(name), other.provenance.get(name)
        if ours != theirs:
            raise InputError(
                f"{str(first)!r} and {str(path)!r} differ in {name} ({theirs} and {ours}), so that their numbers "
                "cannot be compared; report each by itself."
            )


def _labels(paths: Sequence[Path]) -> list[str]:
    """Names of the files, whole paths where names are the same."""
    stems = [path.stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]


def _labelled(method: MethodFacts, label: str) -> MethodFacts:
    return replace(method, name=f"{method.name} [{label}]", family=f"{method.family} [{label}]")


def _told_apart(number: int, runs: Sequence[Results], label: str) -> dict[str, MethodFacts]:
    """Whole families, of which a member cannot be one row with that of another run, under names of their own."""
    differing = _differing(number, runs)
    families = {m.family for m in runs[number].methods if m.name in differing}
    own = [m for m in runs[number].methods if m.family in families]
    alone = len(own) == len(families)
    return {m.name: _labelled(m, (_difference(m, runs) if alone else "") or label) for m in own}


def _difference(method: MethodFacts, runs: Sequence[Results]) -> str:
    """The settings that tell it from those of its name in the other runs, where they do and can be read."""
    same = [dict(m.settings) for run in runs for m in run.methods if m.name == method.name]
    names = [name for name in method.settings if any(other.get(name) != method.settings[name] for other in same)]
    said = [", ".join(f"{name}={other.get(name)}" for name in names) for other in same]
    if not names or len(set(said)) < len(same) or max(map(len, said)) > _LONG:
        return ""
    return said[same.index(dict(method.settings))]


def _differing(number: int, runs: Sequence[Results]) -> set[str]:
    """Methods of a run that another run has too, with other settings or on the same prompts: what cannot be one row.
    Plain decoding and Hugging Face's are the same everywhere."""
    ours = runs[number]
    found = set()
    for other in (run for i, run in enumerate(runs) if i != number):
        theirs = {m.name: m for m in other.methods}
        for m in ours.methods:
            if m.name in theirs and m.name not in (PLAIN, HF):
                both = _measured(ours, m.name) & _measured(other, m.name)
                if both or dict(theirs[m.name].settings) != dict(m.settings):
                    found.add(m.name)
    return found


def _measured(run: Results, name: str) -> set[tuple[object, ...]]:
    return {(x.place, x.request) for x in run.measurements if x.method == name}


def _warnings(paths: Sequence[Path], runs: Sequence[Results], found: Sequence[tuple[int, Measurement]]) -> list[str]:
    said = []
    for name in _MACHINE:
        values = list(dict.fromkeys(str(run.provenance.get(name)) for run in runs))
        if len(values) > 1:
            said.append(
                f"The runs differ in {name} ({', '.join(values)}): speed-ups are over each run's own plain decoding, "
                "tokens/s do not compare."
            )
    for path, run in zip(paths, runs, strict=True):
        missing = len(run.settings.get("prompts", ())) - len(run.by_prompt)
        if missing > 0:
            said.append(f"{path.name} is not complete: {counted(missing, 'prompt')} missing.")
        if PLAIN not in {m.name for m in run.methods}:
            said.append(f"{path.name} has no plain decoding, so that its methods have no speed-up.")
    places: dict[str, set[tuple[str, str, int]]] = {}
    for _, x in found:
        places.setdefault(x.method, set()).add(x.place)
    if len({frozenset(own) for own in places.values()}) > 1:
        said.append("Not every method was measured on the same prompts: rows of all prompts are of those of each.")
    return said
