"""Prompt lookup: propose what followed the longest earlier occurrence of the last tokens. No training, no network.

How far a copy can be trusted depends on how much already agrees: after m equal tokens the next one is the same with a
probability that rises with m. It is estimated from the sequence itself, whose every committed token shows whether a
proposal would have held, starting from what texts of a small chat model gave: 1 - 0.8 m^-0.85.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest
from paceline.errors import InputError
from paceline.host_jit import host_jit
from paceline.metrics import StageClock
from paceline.tree import DraftTree

LONGEST = 32
"""Longer agreements count as this long."""
_PRIOR_WEIGHT = 8.0


class PromptLookupDrafter(Drafter):
    """Copies from the sequence itself, a chain whose log-probs say how likely the copy is to hold.

    Agreements shorter than `min_ngram` propose nothing; those longer than `max_ngram` count as that long, and the most
    recent of them wins.

    Raises:
        InputError: n-gram sizes that are not 1 <= min_ngram <= max_ngram.
    """

    name = "prompt_lookup"
    default_block_size = 8
    default_tree_budget = 7

    def __init__(self, max_ngram: int = LONGEST, min_ngram: int = 1):
        if not 1 <= min_ngram <= max_ngram:
            raise InputError(f"n-gram sizes are {min_ngram} to {max_ngram}, but must satisfy 1 <= min <= max.")
        self.max_ngram, self.min_ngram = max_ngram, min_ngram

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> LookupState:
        return LookupState()

    def observe(self, state: Any, first_row: int, features: Tensor, counts: Sequence[int]) -> None:
        pass

    def draft(self, state: LookupState, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        trees = [self._draft_one(state.row(i), request) for i, request in enumerate(requests)]
        clock.lap("draft")
        return trees

    def _draft_one(self, row: _Row, request: DraftRequest) -> DraftTree:
        tokens = row.read(request.tokens)
        # a block of one asks for what needs no network, and that is all that there is here
        depth = request.block_size - 1 if request.block_size > 1 else request.tree_budget
        limit = min(depth, request.tree_budget, request.max_depth)
        if limit <= 0:
            return DraftTree.empty()
        start, agreed = _longest_agreement(tokens, min(self.max_ngram, LONGEST))
        if agreed < self.min_ngram:
            return DraftTree.empty()
        copied = tokens[start : start + limit].copy()
        count = len(copied)
        row.proposed = (len(tokens), agreed, copied)
        lengths = np.minimum(agreed + np.arange(count), LONGEST)
        log_probs = np.log(row.hit_rates()[lengths]).cumsum()
        return DraftTree(torch.from_numpy(copied), torch.arange(count), torch.from_numpy(log_probs.astype(np.float32)))


class LookupState:
    """The tokens of each row, side by side in memory, and what its proposals have been worth."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def row(self, index: int) -> _Row:
        return self._rows.setdefault(index, _Row())

    def reserve(self, num_rows: int, num_slots: int) -> None:
        pass

    def move(self, source: int, destination: int) -> None:
        if source != destination:
            self.clear(destination)
            if source in self._rows:
                self._rows[destination] = self._rows.pop(source)

    def clear(self, row: int) -> None:
        self._rows.pop(row, None)

    def save(self, row: int) -> None:
        """Nothing: the tokens of a sequence are all that it needs, and they come with every request."""

    def restore(self, row: int, saved: None, length: int) -> None:
        pass


class _Row:
    def __init__(self) -> None:
        self.proposed: tuple[int, int, np.ndarray] | None = None
        self._tokens = np.empty(512, np.int64)
        self._length = 0
        agreed = np.arange(1, LONGEST + 1)
        expected = np.concatenate(([0.0], 1 - 0.8 * agreed**-0.85))
        self._tries = np.full(LONGEST + 1, _PRIOR_WEIGHT)
        self._hits = _PRIOR_WEIGHT * expected

    def read(self, tokens: Sequence[int]) -> np.ndarray:
        """All tokens of the row; those that are new say whether the last proposal held."""
        count = len(tokens)
        if count > len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(count, np.int64)))
        self._tokens[self._length : count] = tokens[self._length :]
        self._length = count
        if self.proposed is not None:
            self._learn(*self.proposed, self._tokens[:count])
            self.proposed = None
        return self._tokens[:count]

    def hit_rates(self) -> np.ndarray:
        """The probability that the next token is copied rightly, by the number of tokens that agree."""
        return self._hits / self._tries

    def _learn(self, position: int, agreed: int, copied: np.ndarray, tokens: np.ndarray) -> None:
        for offset, (expected, token) in enumerate(zip(copied, tokens[position:], strict=False)):
            length = min(agreed + offset, LONGEST)
            self._tries[length] += 1
            self._hits[length] += expected == token
            if expected != token:
                return


@host_jit
@no_type_check
def _longest_agreement(tokens, longest):
    """(start, agreed): the token at `start` followed the most recent of the longest occurrences of the last tokens."""
    last, best, start = len(tokens) - 1, 0, 0
    for i in range(last - 1, -1, -1):
        agreed = 0
        while agreed < longest and agreed <= i and tokens[i - agreed] == tokens[last - agreed]:
            agreed += 1
        if agreed > best:
            best, start = agreed, i + 1
            if best == longest:
                break
    return start, best
