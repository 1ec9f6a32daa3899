"""Whether something else kept the machine busy while it was measured."""

from __future__ import annotations

from statistics import median

from paceline.bench.measurement import Measurement
from paceline.bench.report.gathered import Gathered
from paceline.bench.wording import counted

_TIMES = 3.0
"""How many times as long as usual a round must take to be noticed: more than longer prompts add to it."""


def disturbed(gathered: Gathered) -> list[str]:
    """A sentence where answers took far longer a round than those of the same method in the same run."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for run, x in gathered.measurements:
        groups.setdefault((run, x.method, x.request), []).append(x)
    slow = [x for done in groups.values() for x in _far_slower(done)]
    if not slow:
        return []
    names = list(dict.fromkeys(x.method for x in slow))
    which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return [
        f"{len(slow)} of {counted(len(gathered.measurements), 'measurement')} ({which}) took more than {_TIMES:g} "
        "times as long a round as their method's others: something else kept the machine busy, or they were far "
        "longer. Measure them again, alone or with more --repeats."
    ]


def _far_slower(done: list[Measurement]) -> list[Measurement]:
    """Of methods that count their rounds."""
    paces = [(x, _seconds_a_round(x)) for x in done if x.answer.statistics is not None and x.answer.statistics.rounds]
    found = []
    for x, pace in paces:
        others = [other for y, other in paces if y is not x]
        if others and pace > _TIMES * median(others):
            found.append(x)
    return found


def _seconds_a_round(x: Measurement) -> float:
    """Of the repeat that counts; the prefill is left out, by the part that it had in the first one."""
    counts = x.answer.statistics
    assert counts is not None
    whole = counts.prefill_s + counts.decode_s
    return x.seconds * (counts.decode_s / whole if whole else 1.0) / counts.rounds
