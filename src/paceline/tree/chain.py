"""The chain of argmaxes: what vanilla DFlash verifies (arXiv 2602.06036)."""

from __future__ import annotations

import torch

from paceline.tree.draft_tree import DraftTree
from paceline.tree.marginals import Marginals


def chain(marginals: Marginals, budget: int) -> DraftTree:
    """The likeliest token of each position, `budget` of them at most; it ends where no token can occur.

    Raises:
        InputError: a negative budget.
    """
    length = min(marginals.max_nodes(budget), len(marginals.tokens))
    log_probs = marginals.log_probs[:length, :1].flatten().cumsum(0)
    length = int((log_probs > -torch.inf).sum())
    return DraftTree(
        tokens=marginals.tokens[:length, :1].flatten(),
        parents=torch.arange(length, device=log_probs.device),
        log_probs=log_probs[:length],
    )
