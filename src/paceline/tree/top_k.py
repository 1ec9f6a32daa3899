"""EAGLE-2's dynamic tree (arXiv 2406.16858, section 4), over position marginals."""

from __future__ import annotations

from paceline.tree.draft_tree import DraftTree
from paceline.tree.levels import grow_by_levels
from paceline.tree.marginals import Marginals


def top_k(marginals: Marginals, budget: int, width: int = 10) -> DraftTree:
    """Expand the `width` likeliest nodes of a level by `width` tokens each; keep the best `budget` of all.

    Raises:
        InputError: a negative budget.
    """
    if marginals.max_nodes(budget) == 0:
        return DraftTree.empty(marginals.tokens.device)
    num_children = [min(width, marginals.tokens.shape[1])] * width
    return grow_by_levels(marginals, num_children, budget).trim()
