"""One measured answer, and the same as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from paceline.bench.method import Answer
from paceline.metrics import tokens_per_s
from paceline.near_ties import Divergence
from paceline.prompts import Prompt

Request = tuple[tuple[str, float], ...]
"""What was asked, by name in alphabetical order."""


def request_key(asked: Mapping[str, float]) -> Request:
    return tuple(sorted(asked.items()))


@dataclass(frozen=True)
class Measurement:
    """One method on one turn of a prompt: the first repeat's answer, and the seconds of every repeat.

    `asked` are the settings of the request that a reader must know (temperature, max_tokens and what was swept);
    `limit` is what they and the context let an answer have.
    `divergence` is where the text parts from plain decoding's, None where it does not or nothing plain ran beside it.
    `is_right` is what a judge said of the answer, None where none was asked.
    """

    method: str
    prompt: Prompt
    prompt_tokens: int
    answer: Answer
    all_seconds: tuple[float, ...]
    turn: int = 1
    asked: Mapping[str, float] = field(default_factory=dict)
    divergence: Divergence | None = None
    is_right: bool | None = None
    limit: int | None = None

    @property
    def seconds(self) -> float:
        """The median of the repeats."""
        return median(self.all_seconds)

    @property
    def seconds_per_token(self) -> float:
        return 1.0 / tokens_per_s(len(self.answer.tokens), self.seconds)

    @property
    def place(self) -> tuple[str, str, int]:
        """(set, id, turn): what measurements of different methods are paired by."""
        return self.prompt.set_name, self.prompt.id, self.turn

    @property
    def request(self) -> Request:
        """What was asked, as what measurements of the same request have in common."""
        return request_key(self.asked)

    @property
    def hit_limit(self) -> bool:
        """Whether the answer is as long as it could be."""
        return self.limit is not None and len(self.answer.tokens) >= self.limit


def as_json(measurement: Measurement) -> dict[str, Any]:
    """All of it but the words of the prompt, which its set and id name."""
    x, statistics = measurement, measurement.answer.statistics
    found: dict[str, Any] = {
        "method": x.method,
        "set": x.prompt.set_name,
        "id": x.prompt.id,
        "turn": x.turn,
        "asked": dict(x.asked),
        "prompt_tokens": x.prompt_tokens,
        "tokens": list(x.answer.tokens),
        "all_seconds": list(x.all_seconds),
        "statistics": None if statistics is None else asdict(statistics),
        "divergence": None if x.divergence is None else asdict(x.divergence),
        "is_right": x.is_right,
        "limit": x.limit,
    }
    return found
