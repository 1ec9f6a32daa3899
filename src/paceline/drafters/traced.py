"""A drafter that remembers the trees it proposed, so that a round can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest
from paceline.metrics import StageClock
from paceline.tree import DraftTree


@dataclass(frozen=True)
class Round:
    """One sequence's round: how many tokens were committed before it, and the tree."""

    num_tokens: int
    tree: DraftTree

    def accepted(self, tokens: Sequence[int]) -> list[int]:
        """The nodes (in the index space of the pass) that the finished text `tokens` went through."""
        children = {
            (int(parent), int(token)): node
            for node, (parent, token) in enumerate(zip(self.tree.parents, self.tree.tokens, strict=True), start=1)
        }
        path, node = [], 0
        for token in tokens[self.num_tokens :]:
            if (node, token) not in children:
                break
            node = children[node, token]
            path.append(node)
        return path


class TracedDrafter(Drafter):
    """Any drafter, with the rounds of row 0 kept in `rounds`."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.name = drafter.name
        self.feature_layers, self.num_readable = drafter.feature_layers, drafter.num_readable
        self.default_block_size = drafter.default_block_size
        self.default_tree_budget = drafter.default_tree_budget
        self.rounds: list[Round] = []

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> Any:
        return self.drafter.new_state(num_rows, num_slots, device)

    def observe(self, state: Any, first_row: int, features: Tensor, counts: Sequence[int]) -> None:
        self.drafter.observe(state, first_row, features, counts)

    def draft(self, state: Any, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        trees = self.drafter.draft(state, requests, clock)
        self.rounds.append(Round(len(requests[0].tokens), trees[0]))
        return trees

    def extend(
        self,
        state: Any,
        requests: Sequence[DraftRequest],
        trees: Sequence[DraftTree],
        chosen: Sequence[bool],
        clock: StageClock,
    ) -> list[DraftTree]:
        extended = self.drafter.extend(state, requests, trees, chosen, clock)
        self.rounds[-1] = Round(len(requests[0].tokens), extended[0])
        return extended
