"""A tree that goes on below one of its nodes: what a second block drafted, where the first one ended."""

from __future__ import annotations

import torch

from paceline.tree.draft_tree import DraftTree


def likeliest_end(tree: DraftTree, depth: int) -> tuple[int, float] | None:
    """The likeliest node of a depth that has no children, by its number in the pass, and its log-prob; None where there
    is none."""
    depths, best = [0], None
    log_probs, parents = tree.log_probs.tolist(), tree.parents.tolist()
    inner = set(parents)
    for node, parent in enumerate(parents, start=1):
        depths.append(depths[parent] + 1)
        if depths[node] == depth and node not in inner and (best is None or log_probs[node - 1] > best[1]):
            best = node, log_probs[node - 1]
    return best


def graft(tree: DraftTree, node: int, branch: DraftTree, budget: int) -> DraftTree:
    """The `budget` likeliest nodes of `tree` with `branch` below `node`, which has no children; likeliest first.

    The branch's log-probs are those of its own paths.
    """
    count, device = tree.num_nodes, tree.tokens.device
    below = torch.where(branch.parents == 0, torch.full_like(branch.parents, node), branch.parents + count)
    tokens = torch.cat((tree.tokens, branch.tokens))
    parents = torch.cat((tree.parents, below))
    log_probs = torch.cat((tree.log_probs, branch.log_probs + tree.log_probs[node - 1]))
    # a parent is never less likely than its child, and where they tie it comes first: the sort is stable
    order = log_probs.argsort(descending=True, stable=True)[:budget]
    number = torch.zeros(1 + len(tokens), dtype=torch.int64, device=device)
    number[order + 1] = torch.arange(1, 1 + len(order), device=device)
    return DraftTree(tokens[order], number[parents[order]], log_probs[order])
