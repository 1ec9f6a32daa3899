"""Values that every layer may hold: what a request asks for and what it gets back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import InputError
from paceline.metrics import acceptance_length, tokens_per_s

#: Most alternatives that a request may ask log-probabilities of.
MAX_LOGPROBS = 20

#: A pass over more nodes than this costs more than any drafter can win.
MAX_NODES = 4096
_BLOCK = f"at least 2 (the anchor and one drafted token) and at most {MAX_NODES}"
_TREE = f"at least 1 (to decode without drafting, switch drafting off instead) and at most {MAX_NODES}"

PolicyInputs = Literal["logits", "softmax", "top_k", "features", "last_hidden"]
"""What a block-size policy reads of a prompt: the target's raw logits after its last token, their softmax, the largest
of them, the drafter's features of that token (outputs of the layers that it taps), or the output of the last layer."""

PolicyOutputs = Literal["best_size", "accepted"]
"""What such a policy predicts: which block size is best, or for each the logarithm of the drafted tokens that a round
keeps."""

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Grammar:
    """What an answer must look like: a JSON schema, a regular expression, or a grammar in EBNF, as text."""

    kind: Literal["json_schema", "regex", "ebnf"]
    source: str

    def __post_init__(self) -> None:
        _require(self.kind in ("json_schema", "regex", "ebnf"), "kind", self.kind, "json_schema, regex or ebnf")


@dataclass(frozen=True)
class GenerationSettings:
    """What one request asks for.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch those transforms off, and so do a
    `repetition_penalty` of 1 and a `presence_penalty` and `frequency_penalty` of 0. `logit_bias` is added to the logits
    of its token ids. `seed` keys the sampling noise: same seed, same text, drafted or not.

    The answer ends at the target's end-of-text tokens (unless `ignore_eos`), at a token of `stop_token_ids`, before a
    string of `stop`, or after `max_tokens`, whichever comes first; before `min_tokens` only the last of these ends it.
    `grammar` holds the answer to a form; `max_tokens` may still cut it. `logprobs` asks for the log-probability of
    every emitted token and of that many alternatives.

    `draft` false decodes this request one token a round. `raw` sends a text prompt without the chat template.
    `block_size` and `tree_budget` (None: the model's own) say how much to draft; they change speed only.

    Raises:
        InputError: a value outside its range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None
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
        self._check_penalties()
        _require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer")
        _require(all(self.stop), "stop", self.stop, "non-empty strings")
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "within 0 to max_tokens")
        held = self.grammar is None or self.min_tokens == 0
        _require(held, "min_tokens", self.min_tokens, "0 with a grammar, which itself says when the answer ends")
        asked = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        _require(asked, "logprobs", self.logprobs, f"within 0 to {MAX_LOGPROBS} alternatives")
        _require(self.block_size is None or 2 <= self.block_size <= MAX_NODES, "block_size", self.block_size, _BLOCK)
        _require(self.tree_budget is None or 1 <= self.tree_budget <= MAX_NODES, "tree_budget", self.tree_budget, _TREE)

    def _check_penalties(self) -> None:
        factor = self.repetition_penalty
        _require(0.01 <= factor <= 100.0, "repetition_penalty", factor, "1 (off) or within 0.01 to 100")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-100.0 <= value <= 100.0, name, value, "0 (off) or within -100 to 100")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for token in (*self.logit_bias, *_several(self.stop_token_ids)):
            _require(
                isinstance(token, int), "a token of logit_bias or stop_token_ids", token, "a token id (an integer)"
            )
        for token, bias in self.logit_bias.items():
            _require(math.isfinite(bias) and abs(bias) <= 100.0, f"logit_bias of {token}", bias, "within -100 to 100")

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens that came before change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def edits_logits(self) -> bool:
        """Whether the logits are changed before temperature and what follows it."""
        return self.has_penalties or bool(self.logit_bias) or self.min_tokens > 0 or self.grammar is not None

    def ends(self, eos_token_ids: Collection[int]) -> frozenset[int]:
        """The tokens that end an answer of a target with these end-of-text tokens."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else frozenset(eos_token_ids))


def _several(token_ids: object) -> tuple[object, ...]:
    _require(isinstance(token_ids, tuple | list), "stop_token_ids", token_ids, "several token ids, such as (198,)")
    return tuple(token_ids)  # type: ignore[arg-type]  # checked


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InputError(f"{name} is {value!r}, but must be {expected}.")


@dataclass
class Statistics:
    """Raw counts of one request; rates are derived in `metrics`.

    `cached_tokens` are those of the prompt that an earlier sequence had left. `tokens` are emitted tokens: the
    prefill's, then one bonus per round and the `accepted`. What a round accepts past the request's end is not emitted
    and not counted (its last emitted token is the bonus), so `tokens == 1 + rounds + accepted` always.
    `block_sizes[b]` counts the rounds that were drafted with a block of b rows (1: a draft network rested; 0: nothing
    was drafted). `accepted_by_position[d]` counts the rounds whose accepted path reached depth d + 1. `stage_ms` is
    wall-clock by stage and `drafter_calls` the draft network's forwards, both shared by the batch; `predict_ms` is the
    policy's look at the prompt.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    block_sizes: dict[int, int] = field(default_factory=dict)
    accepted_by_position: list[int] = field(default_factory=list)
    stage_ms: dict[str, float] = field(default_factory=dict)
    drafter_calls: int = 0
    predict_ms: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def count_round(self, drafted: int, block_size: int = 0) -> None:
        """A verification pass over `drafted` nodes, drafted with blocks of `block_size` rows."""
        self.rounds += 1
        self.drafted += drafted
        self.block_sizes[block_size] = self.block_sizes.get(block_size, 0) + 1

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
class TokenLogprob:
    """The target's log-probability of an emitted token, and of the likeliest tokens in its place, best first.

    They are of the distribution that the token was chosen from: after penalties and bias and, at a temperature above
    0, after temperature, top-k, top-p and min-p; -inf says that a token could not be chosen.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """A streamed piece of an answer; the last one carries the finish reason and the statistics.

    `logprobs` has an entry for each of `tokens` where the request asks for them, and is empty otherwise.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    statistics: Statistics | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    statistics: Statistics
    logprobs: tuple[TokenLogprob, ...] = ()


def complete(pieces: Sequence[Piece]) -> Completion:
    """The answer whose pieces these are, all of them."""
    last = pieces[-1]
    assert last.finish_reason is not None and last.statistics is not None, "not at its end"
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    logprobs = tuple(entry for piece in pieces for entry in piece.logprobs)
    text = "".join(piece.text for piece in pieces)
    return Completion(text, tokens, last.finish_reason, last.statistics, logprobs)
