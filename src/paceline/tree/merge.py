"""Two draft trees of one sequence become one: what several drafters propose, verified in one pass.

A path that both trees hold is likelier than either says: with independent drafters its next token is wrong only if
both are. Path log-probs follow from the conditional ones, and the likeliest nodes of the union stay.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
import torch

from paceline.host_jit import host_jit
from paceline.tree.draft_tree import DraftTree


def merge(first: DraftTree, second: DraftTree, budget: int) -> DraftTree:
    """The `budget` likeliest nodes of the union of two trees, likeliest first, on the device of the first.

    The path log-probs of both must be comparable: probabilities that the target takes the path.
    """
    if not second.num_nodes and first.num_nodes <= budget:
        return first
    device = first.tokens.device
    arrays = [t.cpu().numpy() for tree in (first, second) for t in (tree.tokens, tree.parents, tree.log_probs)]
    tokens, parents, log_probs = (torch.from_numpy(a).to(device) for a in _merge(*arrays, budget))
    return DraftTree(tokens, parents, log_probs)


@host_jit
@no_type_check
def _merge(
    tokens: Any, parents: Any, log_probs: Any, other_tokens: Any, other_parents: Any, other_log_probs: Any, budget: Any
) -> Any:
    count, others = len(tokens), len(other_tokens)
    # the union, node 0 the root; `steps` are conditional log-probs
    token = np.empty(1 + count + others, np.int64)
    parent = np.zeros(1 + count + others, np.int64)
    step = np.zeros(1 + count + others, np.float32)
    path = np.zeros(1 + count + others, np.float32)
    for i in range(count):
        token[i + 1], parent[i + 1] = tokens[i], parents[i]
        step[i + 1] = log_probs[i] - (log_probs[parents[i] - 1] if parents[i] > 0 else np.float32(0))
    size = 1 + count
    place = np.zeros(1 + others, np.int64)  # of the other tree's nodes in the union
    for i in range(others):
        above = place[other_parents[i]]
        other_step = other_log_probs[i] - (other_log_probs[other_parents[i] - 1] if other_parents[i] > 0 else 0)
        found = 0
        for j in range(1, size):
            if parent[j] == above and token[j] == other_tokens[i]:
                found = j
                break
        if found:
            miss = (1 - np.exp(step[found])) * (1 - np.exp(other_step))
            step[found] = np.log(max(1 - miss, np.exp(step[found])))
        else:
            found = size
            token[found], parent[found], step[found] = other_tokens[i], above, other_step
            size += 1
        place[i + 1] = found
    for j in range(1, size):  # parents come first, in both trees and so in the union
        path[j] = min(path[parent[j]] + step[j], path[parent[j]])
    # a parent is never less likely than its child, and where they tie it comes first: the sort is stable
    order = np.argsort(-path[1:size], kind="mergesort") + 1
    kept = min(budget, size - 1)
    number = np.zeros(size, np.int64)
    for i in range(kept):
        number[order[i]] = i + 1
    chosen = order[:kept]
    return token[chosen], number[parent[chosen]], path[chosen]
