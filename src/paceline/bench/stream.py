"""What methods that learn while they serve gained, query by query, beside those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.adaptation.adapter import Adapter
from paceline.bench.measurement import Measurement
from paceline.bench.method import Method
from paceline.bench.methods import LEARNING, EngineMethod
from paceline.bench.pooled import rate
from paceline.metrics import acceptance_length

_PARTS = 6


def along_the_stream(methods: Sequence[Method], measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """A row for every method that learns and its frozen counterpart, where one learns: acceptance by parts of the
    stream, updates, and tokens/s of the whole stream (updates included) over the counterpart's."""
    learning = [m.name for m in methods if m.name.partition("+")[0].endswith(LEARNING)]
    wanted = {*learning, *map(_frozen, learning)}
    by_method = {m.name: [x for x in measurements if x.method == m.name] for m in methods}
    rows = []
    for method in methods:
        if method.name not in wanted:
            continue
        done = by_method[method.name]
        row: dict[str, Any] = {"method": method.name, "parts": _acceptance_by_part(done)}
        if method.name in learning:
            row |= _updates(method)
            frozen = by_method.get(_frozen(method.name))
            row["over_frozen"] = rate(done) / rate(frozen) if frozen else None
        rows.append(row)
    return rows


def _frozen(name: str) -> str:
    method, plus, policy = name.partition("+")
    return method.removesuffix(LEARNING) + plus + policy


def _acceptance_by_part(done: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Acceptance length of consecutive parts of the stream, by the number of their first and last query."""
    parts = []
    for places in np.array_split(np.arange(len(done)), min(_PARTS, len(done))):
        counts = [s for place in places if (s := done[place].answer.statistics) is not None]
        tau = acceptance_length(sum(s.accepted for s in counts), sum(s.rounds for s in counts))
        parts.append({"first": int(places[0]) + 1, "last": int(places[-1]) + 1, "acceptance_length": tau})
    return parts


def _updates(method: Method) -> dict[str, Any]:
    assert isinstance(method, EngineMethod) and isinstance(method.engine.parts.observer, Adapter), "it learns"
    found = [
        {
            "arm": update.arm,
            "before": update.before,
            "after": update.after,
            "original": update.original,
            "seconds": update.seconds,
            "kept": update.kept,
            "query": update.query - 1,  # less the one that warmed up
        }
        for update in method.engine.parts.observer.updates
    ]
    return {"updates": found}
