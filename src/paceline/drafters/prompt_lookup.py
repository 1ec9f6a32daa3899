"""Prompt lookup: propose what followed the last occurrence of the current n-gram. No training, no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest, NoState
from paceline.errors import InputError
from paceline.metrics import StageClock
from paceline.tree import DraftTree


class PromptLookupDrafter(Drafter):
    """Copies from the sequence itself: the longest suffix n-gram (max_ngram down to min_ngram) that occurred before.

    Raises:
        InputError: n-gram sizes that are not 1 <= min_ngram <= max_ngram.
    """

    name = "prompt_lookup"
    default_block_size = 8
    default_tree_budget = 7

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1):
        if not 1 <= min_ngram <= max_ngram:
            raise InputError(f"n-gram sizes are {min_ngram} to {max_ngram}, but must satisfy 1 <= min <= max.")
        self.max_ngram, self.min_ngram = max_ngram, min_ngram

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> NoState:
        return NoState()

    def observe(self, state: Any, first_row: int, features: Tensor, counts: Sequence[int]) -> None:
        pass

    def draft(self, state: Any, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        trees = [self._draft_one(request) for request in requests]
        clock.lap("draft")
        return trees

    def _draft_one(self, request: DraftRequest) -> DraftTree:
        limit = min(request.block_size - 1, request.tree_budget, request.max_depth)
        continuation = self._continuation(request.tokens, limit) if request.wants_nodes else []
        count = len(continuation)
        return DraftTree(
            tokens=torch.tensor(continuation, dtype=torch.int64),
            parents=torch.arange(count),
            log_probs=torch.zeros(count),
        )

    def _continuation(self, tokens: Sequence[int], limit: int) -> list[int]:
        for size in range(self.max_ngram, self.min_ngram - 1, -1):
            start = _last_occurrence(tokens, size)
            if start is not None:
                return list(tokens[start + size : start + size + limit])
        return []


def _last_occurrence(tokens: Sequence[int], size: int) -> int | None:
    """Where the last `size` tokens occurred most recently before, with at least one token after them."""
    pattern = list(tokens[-size:])
    for start in range(len(tokens) - size - 1, -1, -1):
        if tokens[start] == pattern[0] and list(tokens[start : start + size]) == pattern:
            return start
    return None
