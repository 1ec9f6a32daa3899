"""EAGLE-3's draft tree (arXiv 2503.01840, 2406.16858): level by level, from the likeliest nodes of the last one, and
of all nodes the likeliest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.drafters.unrolled import UnrolledDrafter
from paceline.errors import InputError
from paceline.models.eagle3 import Eagle3Network
from paceline.tree.guessed import GuessedTree, SlotGuesses

_MOST_DEPTH, _MOST_WIDTH = 64, 64
_BUDGET_CPU, _BUDGET = 8, 60
"""Nodes of a tree; on a CPU every row of a pass costs."""


@dataclass(frozen=True)
class Eagle3TreeConfig:
    """How trees grow: `depth` levels where nobody asks for another number, of each of which the likeliest `num_starts`
    nodes get `width` children. Of all of them the likeliest stay. The sizes are those of the paper.

    Raises:
        InputError: sizes that no tree has.
    """

    depth: int = 7
    num_starts: int = 10
    width: int = 10

    def __post_init__(self) -> None:
        for name, most in (("depth", _MOST_DEPTH), ("num_starts", _MOST_WIDTH), ("width", _MOST_WIDTH)):
            if not 1 <= getattr(self, name) <= most:
                raise InputError(f"{name} is {getattr(self, name)}, but must be from 1 to {most}.")


_ON_CPU = Eagle3TreeConfig(5, 4, 4)
EAGLE3_TREES: Mapping[str, Eagle3TreeConfig | None] = MappingProxyType(
    {
        "best_first": None,
        "top_k": Eagle3TreeConfig(5, 1, 2),
        "chain": Eagle3TreeConfig(5, 1, 1),
    }
)
"""By the names of how trees grow: from what is likely (None: in sizes that fit the device), always in the same shape,
not at all."""


class Eagle3Drafter(UnrolledDrafter):
    """The network, and how its trees grow: as in the paper where not said, and smaller on a CPU."""

    name = "eagle3"
    network: Eagle3Network

    def __init__(self, network: Eagle3Network, tree: Eagle3TreeConfig | None = None, tree_budget: int | None = None):
        on_cpu = network.norm.weight.device.type == "cpu"
        self.tree = tree or (_ON_CPU if on_cpu else Eagle3TreeConfig())
        budget = tree_budget or (_BUDGET_CPU if on_cpu else _BUDGET)
        super().__init__(network, self.tree.depth, self.tree.num_starts, budget)
        self._width = min(self.tree.width, network.num_draft_tokens)

    @property
    def drafting(self) -> str:
        return f"{self.name} ({self.tree.num_starts} starts, width {self.tree.width})"

    def _new_tree(self, max_depth: int) -> GuessedTree:
        return GuessedTree(max_depth, by_level=True)

    def _guesses(self, hidden: Float[Tensor, "b m 1 h"]) -> list[list[SlotGuesses]]:
        logits = self.network.slot_logits(hidden).float()
        top = logits.topk(self._width, -1)
        log_probs = (top.values - logits.logsumexp(-1, keepdim=True)).tolist()
        tokens = self.network.draft_to_target(top.indices).tolist()
        widths = torch.full(hidden.shape[:-1], self._width).tolist()
        return [
            [SlotGuesses(*block) for block in zip(*row, strict=True)]
            for row in zip(tokens, log_probs, widths, strict=True)
        ]
