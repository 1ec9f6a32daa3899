"""Parallel heads as drafter (Medusa, arXiv 2401.10774): all marginals at once, from the last position's features.

The static tree of Medusa is `top_k`; `best_first` makes of the same marginals the best tree of every round (DDTree,
arXiv 2604.12989).

Letters: b rows, n tokens, l drafted positions, f width of the features, h hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.drafters.parallel import ParallelDrafter, default_budget, move_rows
from paceline.models.heads import HeadsNetwork
from paceline.tree import Growth
from paceline.tree.shared_noise import Coupling


@dataclass
class HeadsState:
    """The features of each row's last position, and how each sampled row's marginals meet the noise."""

    device: torch.device
    last: dict[int, Tensor] = field(default_factory=dict)
    couplings: dict[int, Coupling] = field(default_factory=dict)

    def reserve(self, num_rows: int, num_slots: int) -> None:
        pass

    def move(self, source: int, destination: int) -> None:
        if source != destination:
            move_rows(self.last, source, destination)
            move_rows(self.couplings, source, destination)

    def clear(self, row: int) -> None:
        self.last.pop(row, None)
        self.couplings.pop(row, None)

    def save(self, row: int) -> None:
        """Nothing: the features of the last position of a prompt always come anew."""

    def restore(self, row: int, saved: None, length: int) -> None:
        pass


class HeadsDrafter(ParallelDrafter):
    """The heads, and how their trees grow. A block of s rows asks for s - 1 heads, as far as there are."""

    name = "heads"
    network: HeadsNetwork

    def __init__(
        self,
        network: HeadsNetwork,
        growth: Growth,
        tree_budget: int | None = None,
        shared_noise: bool = True,
        samples: bool = False,
    ):
        super().__init__(growth, shared_noise, samples)
        self.network = network.eval()
        self.feature_layers = tuple(network.config.target_layer_ids)
        self.default_block_size = 1 + network.config.num_heads
        self.default_tree_budget = tree_budget or default_budget(self.default_block_size, network.norm.weight.device)

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> HeadsState:
        return HeadsState(device)

    def observe(
        self, state: HeadsState, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]
    ) -> None:
        for row, count in enumerate(counts):
            if count:
                state.last[first_row + row] = features[row, count - 1].clone()

    def _catch_up(self, state: HeadsState, num_rows: int) -> None:
        """Nothing waits: the last features are all that the heads read."""

    def _reaches(self, state: HeadsState, row: int, block_size: int) -> bool:
        return row in state.last

    def _hidden(
        self, state: HeadsState, rows: list[int], anchors: list[int], block_size: int
    ) -> Float[Tensor, "b l h"]:
        features = torch.stack([state.last[row] for row in rows])
        return self.network.draft_hidden(features, torch.tensor(anchors, device=state.device), block_size - 1)
