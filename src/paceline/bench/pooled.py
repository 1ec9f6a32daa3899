"""What several answers of a method come to: counts and times summed before they are divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from paceline.bench.measurement import Measurement
from paceline.metrics import STAGES, acceptance_length, tokens_per_s
from paceline.types import Statistics


def rate(done: Sequence[Measurement]) -> float:
    """Tokens/s."""
    return tokens_per_s(sum(len(x.answer.tokens) for x in done), sum(x.seconds for x in done))


def with_rounds(done: Sequence[Measurement]) -> list[Statistics]:
    """The counts of those that have rounds: Hugging Face's own generate says nothing of them."""
    return [s for x in done if (s := x.answer.statistics) is not None and s.rounds]


def tau(done: Sequence[Measurement]) -> float | None:
    """Acceptance length; None without rounds."""
    counts = with_rounds(done)
    return acceptance_length(sum(s.accepted for s in counts), sum(s.rounds for s in counts)) if counts else None


def per_round(done: Sequence[Measurement], name: str) -> float | None:
    """One of the counts (`drafted`, `drafter_calls`), a round; None without rounds."""
    counts = with_rounds(done)
    return sum(getattr(s, name) for s in counts) / sum(s.rounds for s in counts) if counts else None


def stage_ms(done: Sequence[Measurement]) -> dict[str, float]:
    """Milliseconds of a round by stage, in the order of the stages."""
    counts = with_rounds(done)
    spent: Counter[str] = Counter()
    for s in counts:
        spent.update(s.stage_ms)
    rounds = sum(s.rounds for s in counts)
    return {stage: spent[stage] / rounds for stage in STAGES if stage in spent}


def reached(done: Sequence[Measurement]) -> list[float]:
    """Share of rounds whose accepted path reached each depth, from 1 on."""
    counts = with_rounds(done)
    rounds = sum(s.rounds for s in counts)
    found: Counter[int] = Counter()
    for s in counts:
        found.update(dict(enumerate(s.accepted_by_position)))
    return [found[depth] / rounds for depth in sorted(found)]
