"""SpecBlock: dependent blocks, and a tree that is as wide as a rank head expects it to need (arXiv 2605.07243)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.drafters.unrolled import UnrolledDrafter
from paceline.errors import InputError
from paceline.models.specblock import NUM_TOP, SpecBlockNetwork, rank_statistics
from paceline.models.specblock_config import RANK_CLASSES
from paceline.tree.guessed import GuessedTree, SlotGuesses

NUM_BLOCKS, NUM_STARTS = 2, 4
SIBLINGS = (1, 4, 10, 0)
"""For each rank bucket (1, 2-4, 5-10, beyond): tokens of a slot that are tried."""
STATIC_WIDTH = 3
_MOST = 64
_BUDGET_CPU, _BUDGET = 7, 60
"""Nodes of a tree; on a CPU every row of a pass costs."""


@dataclass(frozen=True)
class SpecBlockTreeConfig:
    """How trees grow.

    `num_blocks` (M) blocks come after one another where nobody asks for another number; those of one stage start from
    `num_starts` nodes at most; `siblings` are the tokens to try by rank bucket. `width` makes the tree static: as many
    siblings at every slot, whatever the rank head says.

    Raises:
        InputError: sizes that no tree has.
    """

    num_blocks: int = NUM_BLOCKS
    num_starts: int = NUM_STARTS
    siblings: tuple[int, ...] = SIBLINGS
    width: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_blocks", "num_starts"):
            if not 1 <= getattr(self, name) <= _MOST:
                raise InputError(f"{name} is {getattr(self, name)}, but must be from 1 to {_MOST}.")
        fits = len(self.siblings) == RANK_CLASSES and all(0 <= count <= NUM_TOP for count in self.siblings)
        if not fits or not any(self.siblings):
            raise InputError(
                f"siblings is {self.siblings}, but must hold {RANK_CLASSES} numbers, each from 0 to {NUM_TOP}, and not "
                "all 0."
            )
        if self.width is not None and not 1 <= self.width <= NUM_TOP:
            raise InputError(f"width is {self.width}, but must be from 1 to {NUM_TOP}.")


SPECBLOCK_TREES: Mapping[str, SpecBlockTreeConfig] = MappingProxyType(
    {
        "best_first": SpecBlockTreeConfig(),
        "top_k": SpecBlockTreeConfig(width=STATIC_WIDTH),
        "chain": SpecBlockTreeConfig(num_starts=1, width=1),
    }
)
"""By the names of how trees grow: as the rank head says, as wide at every slot, not at all."""


def specblock_tree(
    name: str, siblings: tuple[int, ...] | None = None, num_starts: int | None = None
) -> SpecBlockTreeConfig:
    """How trees of a name grow, with other siblings or starts where they are given.

    Raises:
        InputError: siblings by rank for a tree that asks no rank head, or sizes that no tree has.
    """
    tree = SPECBLOCK_TREES[name]
    if num_starts is not None and name == "chain":
        raise InputError(f"starts is {num_starts}, but a chain has one; leave it out, or choose another tree.")
    if siblings is not None and tree.width is not None:
        raise InputError(f"siblings go by what the rank head says, but tree {name!r} does not ask it; leave one out.")
    return replace(
        tree, siblings=siblings or tree.siblings, num_starts=tree.num_starts if num_starts is None else num_starts
    )


class SpecBlockDrafter(UnrolledDrafter):
    """The network, and how its trees grow."""

    name = "specblock"
    network: SpecBlockNetwork

    def __init__(
        self,
        network: SpecBlockNetwork,
        tree: SpecBlockTreeConfig | None = None,
        tree_budget: int | None = None,
    ):
        self.tree = tree or SpecBlockTreeConfig()
        on_cpu = network.norm.weight.device.type == "cpu"
        budget = tree_budget or (_BUDGET_CPU if on_cpu else _BUDGET)
        super().__init__(network, self.tree.num_blocks, self.tree.num_starts, budget)

    def _new_tree(self, max_depth: int) -> GuessedTree:
        return GuessedTree(max_depth)

    @property
    def drafting(self) -> str:
        shape = f"{self.tree.num_starts} starts" + (f", width {self.tree.width}" if self.tree.width else "")
        return f"{self.name} ({shape})"

    def _guesses(self, hidden: Float[Tensor, "b m k h"]) -> list[list[SlotGuesses]]:
        network = self.network
        logits = network.slot_logits(hidden).float()
        log_probs = logits.log_softmax(-1)
        top = log_probs.topk(NUM_TOP, -1)
        tokens, chances = network.draft_to_target(top.indices).tolist(), top.values.tolist()
        siblings = self._siblings(hidden, log_probs, top.values)
        return [
            [SlotGuesses(*block) for block in zip(*row, strict=True)]
            for row in zip(tokens, chances, siblings, strict=True)
        ]

    def _siblings(self, hidden: Tensor, log_probs: Tensor, top: Tensor) -> list[list[list[int]]]:
        if self.tree.width is not None:
            return torch.full(hidden.shape[:-1], self.tree.width).tolist()
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        ranks = self.network.rank_logits(hidden, rank_statistics(top, entropy)).argmax(-1)
        return torch.tensor(self.tree.siblings, device=ranks.device)[ranks].tolist()
