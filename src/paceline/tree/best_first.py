"""DDTree: the best tree from one block-diffusion pass (arXiv 2604.12989, Algorithm 1).

With independent positions the expected accepted length of a prefix-closed tree is the sum of its nodes' path
probabilities (Proposition 1), so the best tree of `budget` nodes is the `budget` likeliest prefixes
(Proposition 2). A heap finds them: pop the likeliest prefix, push its next sibling and its first child.
"""

from __future__ import annotations

import heapq
from itertools import count

import numpy as np
import torch

from paceline.tree.best_first_host import best_first_host
from paceline.tree.best_first_levelwise import best_first_levelwise
from paceline.tree.draft_tree import DraftTree
from paceline.tree.marginals import Marginals


def best_first(marginals: Marginals, budget: int) -> DraftTree:
    """The `budget` likeliest prefixes, likeliest first; fewer where fewer can occur.

    The choice between the forms is here: a compiled heap in host memory, level by level elsewhere.

    Raises:
        InputError: a negative budget.
    """
    grow = best_first_host if marginals.log_probs.device.type == "cpu" else best_first_levelwise
    return grow(marginals, budget)


def best_first_reference(marginals: Marginals, budget: int) -> DraftTree:
    """Algorithm 1 in plain Python: what the fast forms are tested against.

    Where scores tie, what was pushed earlier is popped earlier; the next sibling is pushed before the child.

    Raises:
        InputError: a negative budget.
        AssertionError: marginals that break their promise (NaN, out of order).
    """
    marginals.validate()
    num_nodes = marginals.max_nodes(budget)
    log_probs, candidates = marginals.log_probs.numpy(), marginals.tokens.tolist()
    path_log_probs = [np.float32(0)]
    tokens: list[int] = []
    parents: list[int] = []
    heap: list[tuple[np.float32, int, int, int, int]] = []
    numbers = count()

    def push(parent: int, depth: int, rank: int) -> None:
        if depth < log_probs.shape[0] and rank < log_probs.shape[1]:
            score = path_log_probs[parent] + log_probs[depth, rank]
            if score > -np.inf:
                heapq.heappush(heap, (-score, next(numbers), parent, depth, rank))

    push(0, 0, 0)
    while heap and len(tokens) < num_nodes:
        cost, _, parent, depth, rank = heapq.heappop(heap)
        tokens.append(candidates[depth][rank])
        parents.append(parent)
        path_log_probs.append(-cost)
        push(parent, depth, rank + 1)
        push(len(tokens), depth + 1, 0)
    return DraftTree(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        parents=torch.tensor(parents, dtype=torch.int64),
        log_probs=torch.tensor(np.array(path_log_probs[1:], dtype=np.float32)),
    )
