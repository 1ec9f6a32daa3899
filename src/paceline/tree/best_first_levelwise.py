"""DDTree's best tree without a heap, for accelerators (METHODS section 3).

The child of a level's i-th best parent by the j-th likeliest token (both from 1) is no better than the
i * j - 1 other pairs with neither index larger. So if i * j > budget it is not needed among the `budget`
best nodes, and about budget * ln(budget) pairs a level are enough.
"""

from __future__ import annotations

from paceline.tree.draft_tree import DraftTree
from paceline.tree.levels import PaddedTree, grow_by_levels
from paceline.tree.marginals import Marginals


def best_first_levelwise(marginals: Marginals, budget: int) -> DraftTree:
    """The `budget` likeliest prefixes, as `best_first_reference` finds them; ties may fall otherwise.

    Raises:
        InputError: a negative budget.
    """
    if marginals.max_nodes(budget) == 0:
        return DraftTree.empty(marginals.tokens.device)
    return best_first_padded(marginals, budget).trim()


def best_first_padded(marginals: Marginals, budget: int) -> PaddedTree:
    """The same tree in a fixed shape, without waiting for the device; needs room for at least one node."""
    num_nodes = marginals.max_nodes(budget)
    width = marginals.tokens.shape[1]
    num_children = [min(width, num_nodes // parent) for parent in range(1, num_nodes + 1)]
    return grow_by_levels(marginals, num_children, num_nodes)
