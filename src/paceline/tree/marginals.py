"""Position marginals: what a parallel drafter says about each of the next positions.

Letters: l positions (depths), k candidates of a position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from paceline.errors import InputError
from paceline.tree.draft_tree import DraftTree


@dataclass(frozen=True)
class Marginals:
    """The likeliest tokens of each position of one sequence, independent of one another (METHODS section 3).

    `tokens` are target-vocabulary ids, best first and distinct within a position; `log_probs` are their
    log-probabilities, at most 0 and non-increasing along a row. -inf says that a token cannot occur.
    """

    tokens: Int64[Tensor, "l k"]
    log_probs: Float32[Tensor, "l k"]

    def max_nodes(self, budget: int) -> int:
        """The most nodes that a tree over these positions can have, at most `budget`.

        Raises:
            InputError: a negative budget.
        """
        if budget < 0:
            raise InputError(f"The node budget is {budget}, but must be 0 (no drafting) or more.")
        num_positions, width = self.tokens.shape
        total, level = 0, 1
        for _ in range(num_positions):
            level *= width
            total += level
            if total >= budget:
                return budget
        return total

    def validate(self) -> None:
        """Check what the docstring promises; an AssertionError names what does not hold."""
        assert self.tokens.shape == self.log_probs.shape, "tokens and log_probs differ in shape"
        assert not self.log_probs.isnan().any(), "a log-prob is NaN"
        assert (self.log_probs <= 0).all(), "a log-prob is above 0"
        assert (self.log_probs[:, 1:] <= self.log_probs[:, :-1]).all(), "log-probs increase along a position"
        for tokens, log_probs in zip(self.tokens, self.log_probs, strict=True):
            possible = tokens[log_probs > -torch.inf].tolist()
            assert len(set(possible)) == len(possible), "a position lists a token twice"


Growth = Callable[[Marginals, int], DraftTree]
"""How a tree grows: (marginals of one sequence, node budget) -> tree of at most that many nodes."""
