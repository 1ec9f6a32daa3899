"""What a plan loses to the oracle: tokens/s over all prompts, against the fastest fixed plan of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.bench.report.frame import Frame
from paceline.bench.results import MethodFacts

_RESAMPLES = 2000
OWN = "the drafter's own sizes"
"""In place of a plan that nobody asked for."""


@dataclass(frozen=True)
class Regret:
    """One plan of a method: the share of the oracle's tokens/s that it lacks, with a 95% bootstrap interval over
    answers. The oracle is chosen afterwards from the same times, so that noise is on its side."""

    label: str
    is_fixed: bool
    loss: float
    low: float
    high: float


def plan_regrets(frame: Frame, methods: Sequence[MethodFacts]) -> list[Regret]:
    """Plans of one method from the least loss on; nothing where fewer than two fixed plans were run."""
    paces = {m.name: {(run, x.place): x.seconds_per_token for run, x in frame.measured[m.name]} for m in methods}
    fixed = [m.name for m in methods if m.settings.get("policy") == "fixed"]
    if len(fixed) < 2:
        return []
    tokens = {(run, x.place): len(x.answer.tokens) for run, x in frame.measured[fixed[0]]}
    places = [place for place in tokens if all(place in of_plan for of_plan in paces.values())]
    if not places:
        return []
    seconds = np.array([[paces[m.name][place] * tokens[place] for m in methods] for place in places])
    oracle = seconds[:, [m.name in fixed for m in methods]].min(1)
    draws = np.random.default_rng(0).integers(len(places), size=(_RESAMPLES, len(places)))
    rows = []
    for column, m in enumerate(methods):
        losses = 1.0 - oracle[draws].sum(1) / seconds[draws, column].sum(1)
        low, high = np.percentile(losses, [2.5, 97.5])
        loss = 1.0 - oracle.sum() / seconds[:, column].sum()
        rows.append(Regret(m.plan or OWN, m.name in fixed, float(loss), float(low), float(high)))
    return sorted(rows, key=lambda row: row.loss)
