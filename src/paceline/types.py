"""Values that every layer may hold: what a request asks for and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import InputError
from paceline.metrics import acceptance_length, tokens_per_s

#: A pass over more nodes than this costs more than any drafter can win.
MAX_NODES = 4096
_BLOCK = f"at least 2 (the anchor and one drafted token) and at most {MAX_NODES}"
_TREE = f"at least 1 (to decode without drafting, switch drafting off instead) and at most {MAX_NODES}"

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class GenerationSettings:
    """What one request asks for.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch those transforms off.
    `seed` keys the sampling noise: same seed, same text, drafted or not. `draft` false decodes this
    request one token a round. `raw` sends a text prompt without the chat template.
    `block_size` and `tree_budget` (None: the model's own) say how much to draft; they change speed only.

    Raises:
        InputError: a value outside its range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    draft: bool = True
    raw: bool = False
    block_size: int | None = None
    tree_budget: int | None = None

    def __post_init__(self) -> None:
        _require(not isinstance(self.stop, str), "stop", self.stop, "several strings, such as ('END',)")
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        usable = self.temperature == 0.0 or 1e-4 <= self.temperature <= 1e4
        _require(usable, "temperature", self.temperature, "0 (greedy) or within 0.0001 to 10000")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "in [0, 1]")
        _require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer")
        _require(all(self.stop), "stop", self.stop, "non-empty strings")
        _require(self.block_size is None or 2 <= self.block_size <= MAX_NODES, "block_size", self.block_size, _BLOCK)
        _require(self.tree_budget is None or 1 <= self.tree_budget <= MAX_NODES, "tree_budget", self.tree_budget, _TREE)


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InputError(f"{name} is {value!r}, but must be {expected}.")


@dataclass
class Statistics:
    """Raw counts of one request; rates are derived in `metrics`.

    `tokens` are emitted tokens: the prefill's, then one bonus per round and the `accepted`. What a round
    accepts past the request's end is not emitted and not counted (its last emitted token is the bonus), so
    `tokens == 1 + rounds + accepted` always. `accepted_by_position[d]` counts the rounds whose accepted path
    reached depth d + 1. `stage_ms` is wall-clock by stage, shared by the batch.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    stage_ms: dict[str, float] = field(default_factory=dict)
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def count_round(self, drafted: int) -> None:
        """A verification pass over `drafted` nodes."""
        self.rounds += 1
        self.drafted += drafted

    def count_accepted(self, depth: int) -> None:
        """The depth of a round's accepted path, as far as it was emitted."""
        self.accepted += depth
        reached = self.accepted_by_position
        reached.extend([0] * (depth - len(reached)))
        for position in range(depth):
            reached[position] += 1

    @property
    def acceptance_length(self) -> float:
        """Mean tokens emitted per round, bonus included (tau)."""
        return acceptance_length(self.accepted, self.rounds)

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second, prefill included."""
        return tokens_per_s(self.tokens, self.prefill_s + self.decode_s)


@dataclass(frozen=True)
class Piece:
    """A streamed piece of an answer; the last one carries the finish reason and the statistics."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    statistics: Statistics | None = None


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    statistics: Statistics
