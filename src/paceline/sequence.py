"""One sequence in flight: what is known of it between rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from paceline.penalties import TokenCounts
from paceline.tree import DraftTree
from paceline.types import GenerationSettings, Statistics, TokenLogprob


class Constraint(Protocol):
    """Holds an answer to a form: which nodes of a tree it may reach, and which tokens may follow each."""

    def prune(self, tree: DraftTree) -> DraftTree: ...
    def mask(self, logits: Float[Tensor, "m v"]) -> None: ...
    def advance(self, tokens: list[int]) -> None: ...


@dataclass
class ActiveSequence:
    """One sequence being decoded: prompt and committed tokens (the last one is the anchor).

    `ends` are the tokens that end the answer. `counts` and `logprobs` are kept where the settings need them; the
    latter has an entry for every committed token of the answer. `policy_state` is what the policy remembers of it.
    """

    tokens: list[int]
    settings: GenerationSettings
    max_tokens: int
    ends: frozenset[int] = frozenset()
    statistics: Statistics = field(default_factory=Statistics)
    constraint: Constraint | None = None
    counts: TokenCounts | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    policy_state: Any = None

    @property
    def remaining(self) -> int:
        """Tokens still wanted."""
        return self.max_tokens - self.statistics.tokens

    def commit(self, tokens: list[int]) -> None:
        """Append tokens to the answer."""
        self.tokens.extend(tokens)
        if self.counts is not None:
            self.counts.add(tokens)
        if self.constraint is not None:
            self.constraint.advance(tokens)
