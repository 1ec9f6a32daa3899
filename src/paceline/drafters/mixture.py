"""Several drafters propose into one tree: copied spans go as far as the text repeats, the rest as the network says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest, DraftState
from paceline.metrics import StageClock
from paceline.tree import DraftTree, merge


class MixtureDrafter(Drafter):
    """A drafter whose trees are merged with those of a second one that reads tokens only, such as prompt lookup.

    Both must give path log-probs that are comparable. The second's depth is bounded by the node budget alone, not by
    the first's block.
    """

    def __init__(self, first: Drafter, second: Drafter):
        assert not second.feature_layers, "the second drafter reads tokens only"
        self.first, self.second = first, second
        self.name = f"{first.name}+{second.name}"
        self.feature_layers, self.num_readable = first.feature_layers, first.num_readable
        self.default_block_size, self.default_tree_budget = first.default_block_size, first.default_tree_budget

    @property
    def drafting(self) -> str:
        return f"{self.first.drafting}+{self.second.drafting}"

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> MixtureState:
        states = (drafter.new_state(num_rows, num_slots, device) for drafter in (self.first, self.second))
        return MixtureState(*states)

    def observe(self, state: Any, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]) -> None:
        self.first.observe(state.first, first_row, features, counts)

    def draft(self, state: Any, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        copying = [replace(request, block_size=request.tree_budget + 1) for request in requests]
        others = self.second.draft(state.second, copying, clock)
        trees = self.first.draft(state.first, requests, clock)
        merged = [
            merge(tree, other, request.tree_budget)
            for tree, other, request in zip(trees, others, requests, strict=True)
        ]
        clock.lap("grow")
        return merged

    def extend(
        self,
        state: Any,
        requests: Sequence[DraftRequest],
        trees: Sequence[DraftTree],
        chosen: Sequence[bool],
        clock: StageClock,
    ) -> list[DraftTree]:
        return self.first.extend(state.first, requests, trees, chosen, clock)


@dataclass
class MixtureState:
    """The states of both drafters, whose rows move together."""

    first: DraftState
    second: DraftState

    def reserve(self, num_rows: int, num_slots: int) -> None:
        self.first.reserve(num_rows, num_slots)
        self.second.reserve(num_rows, num_slots)

    def move(self, source: int, destination: int) -> None:
        self.first.move(source, destination)
        self.second.move(source, destination)

    def clear(self, row: int) -> None:
        self.first.clear(row)
        self.second.clear(row)

    def save(self, row: int) -> tuple[Any, Any]:
        return self.first.save(row), self.second.save(row)

    def restore(self, row: int, saved: tuple[Any, Any], length: int) -> None:
        self.first.restore(row, saved[0], length)
        self.second.restore(row, saved[1], length)
