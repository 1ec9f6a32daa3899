"""What a table's cell and a figure's point say: one method on some prompts, beside plain decoding on the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from paceline.bench.measurement import Measurement, Request, request_key
from paceline.bench.method import PLAIN
from paceline.bench.pooled import per_round, rate, stage_ms, tau
from paceline.bench.report.gathered import Gathered
from paceline.metrics import paired_speedup, repetition_rate

FEW = 5
"""Pairs from which on an interval is worth showing."""
Tagged = tuple[int, Measurement]
"""A measurement with the number of its run."""


@dataclass(frozen=True)
class Cell:
    """One method, one prompt set (None: all of them), one kind of request.

    `speedup` is the median over the `pairs` of an answer with the same run's plain one, with a 95% bootstrap interval;
    None without plain decoding. `tau` is tokens per round, bonus included, rounds pooled; None for a method that does
    not say. `same_text` counts the texts that are plain decoding's (None where another sample is drawn), `near_ties`
    those that part at one. Rates are of answers: `hit_limit` were cut, `right` of the `judged` were right.
    """

    method: str
    set_name: str | None
    asked: Mapping[str, float]
    answers: int
    pairs: int
    tokens_per_s: float
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    tau: float | None
    nodes_per_round: float | None
    draft_share: float | None
    repetition_rate: float
    hit_limit: float
    same_text: int | None
    near_ties: int
    judged: int
    right: int

    @property
    def request(self) -> Request:
        return request_key(self.asked)


def cells(gathered: Gathered) -> list[Cell]:
    """Every method on every set and on all of them, for every kind of request."""
    drawn = {m.name for m in gathered.methods if m.settings.get("rule")}
    found = []
    for asked, of_request in _by_request(gathered.measurements):
        plain = {(run, x.place): x for run, x in of_request if x.method == PLAIN}
        for method in gathered.methods:
            own = [(run, x) for run, x in of_request if x.method == method.name]
            for name in [*gathered.sets, None]:
                these = [(run, x) for run, x in own if name in (x.prompt.set_name, None)]
                if these:
                    samples = method.name in drawn and asked.get("temperature", 0.0) > 0.0
                    found.append(_cell(method.name, name, asked, these, plain, samples))
    return found


def _by_request(measurements: Iterable[Tagged]) -> list[tuple[dict[str, float], list[Tagged]]]:
    groups: dict[Request, list[Tagged]] = {}
    for run, x in measurements:
        groups.setdefault(x.request, []).append((run, x))
    return [(dict(asked), done) for asked, done in groups.items()]


def _cell(
    method: str,
    set_name: str | None,
    asked: Mapping[str, float],
    tagged: Sequence[Tagged],
    plain: Mapping[tuple[int, tuple[str, str, int]], Measurement],
    samples: bool,
) -> Cell:
    done = [x for _, x in tagged]
    pairs = [(base.seconds_per_token, x.seconds_per_token) for run, x in tagged if (base := plain.get((run, x.place)))]
    bases, owns = [base for base, _ in pairs], [own for _, own in pairs]
    ratio, low, high = paired_speedup(bases, owns) if pairs else (None, None, None)
    apart = [x.divergence for x in done if x.divergence is not None]
    judged = [x.is_right for x in done if x.is_right is not None]
    return Cell(
        method=method,
        set_name=set_name,
        asked=asked,
        answers=len(done),
        pairs=len(pairs),
        tokens_per_s=rate(done),
        speedup=ratio,
        speedup_low=low,
        speedup_high=high,
        tau=tau(done),
        nodes_per_round=per_round(done, "drafted"),
        draft_share=_draft_share(done),
        repetition_rate=mean(repetition_rate(x.answer.tokens) for x in done),
        hit_limit=mean(x.hit_limit for x in done),
        same_text=len(pairs) - len(apart) if pairs and not samples else None,
        near_ties=sum(d.is_near_tie for d in apart),
        judged=len(judged),
        right=sum(judged),
    )


def _draft_share(done: Sequence[Measurement]) -> float | None:
    """How much of the rounds' time is drafting, growth of trees included."""
    spent = stage_ms(done)
    total = sum(spent.values())
    return (spent.get("draft", 0.0) + spent.get("grow", 0.0)) / total if total else None


def as_row(cell: Cell) -> dict[str, Any]:
    """A cell as a line of CSV or JSON has it."""
    row = dict(vars(cell))
    asked = row.pop("asked")
    return {**{name: row.pop(name) for name in ("method", "set_name")}, **asked, **row}
