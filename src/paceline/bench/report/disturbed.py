"""Whether something else kept the machine busy while it was measured."""

from __future__ import annotations

from statistics import median

from paceline.bench.measurement import Measurement
from paceline.bench.report.gathered import Gathered

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
    which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more methods"
    return [
        f"{len(slow)} of {len(gathered.measurements)} answers ({which}) took more than {_TIMES:g} times as long a "
        "round as their method's others: something else kept the machine busy, or they were far longer. Measure them "
        "again, alone or with more --repeats."
    ]


def _far_slower(done: list[Measurement]) -> list[Measurement]:
    """Prefill left out; of methods that count their rounds."""
    paces = [(x, s.decode_s / s.rounds) for x in done if (s := x.answer.statistics) is not None and s.rounds]
    usual = median(pace for _, pace in paces) if paces else 0.0
    return [x for x, pace in paces if pace > _TIMES * usual]
