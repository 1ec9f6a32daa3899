"""DDTree's heap, compiled for the host: reads and writes the tensors' own memory.

An entry of the heap is a prefix not yet in the tree, numbered in the order of pushing. Entries lie in plain
arrays; the heap holds their numbers, ordered by score and, where scores tie, by number.

Letters: l positions, k candidates of a position, n nodes of the tree.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
import torch

from paceline.host_jit import host_jit
from paceline.tree.draft_tree import DraftTree
from paceline.tree.marginals import Marginals


def best_first_host(marginals: Marginals, budget: int) -> DraftTree:
    """`best_first_reference`, node for node, for marginals in host memory.

    Raises:
        InputError: a negative budget.
    """
    num_nodes = marginals.max_nodes(budget)
    tokens = torch.empty(num_nodes, dtype=torch.int64)
    parents = torch.empty(num_nodes, dtype=torch.int64)
    log_probs = torch.empty(num_nodes, dtype=torch.float32)
    count = _grow(
        marginals.tokens.contiguous().numpy(),
        marginals.log_probs.contiguous().numpy(),
        tokens.numpy(),
        parents.numpy(),
        log_probs.numpy(),
    )
    return DraftTree(tokens[:count], parents[:count], log_probs[:count])


@host_jit
@no_type_check
def _grow(candidates: Any, marginals: Any, tokens: Any, parents: Any, log_probs: Any) -> int:
    """Fill tokens, parents and log_probs [n] from candidates and marginals [l, k]; the number of nodes."""
    num_positions, width = marginals.shape
    capacity = len(tokens)
    scores = np.empty(2 * capacity + 1, np.float32)
    places = np.empty((2 * capacity + 1, 3), np.int64)  # parent, depth (from 0) and rank of each entry
    heap = np.empty(capacity + 2, np.int64)  # every pop pushes at most two: one entry more per node
    num_pushed = size = count = 0
    if capacity > 0 and marginals[0, 0] > -np.inf:
        scores[0] = marginals[0, 0]
        places[0] = 0
        heap[0] = 0
        num_pushed = size = 1
    while size > 0 and count < capacity:
        entry = heap[0]
        size -= 1
        _sift_down(heap, size, heap[size], scores)
        parent, depth, rank = places[entry]
        tokens[count] = candidates[depth, rank]
        parents[count] = parent
        log_probs[count] = scores[entry]
        count += 1
        if rank + 1 < width:
            before = log_probs[parent - 1] if parent > 0 else np.float32(0)
            score = before + marginals[depth, rank + 1]
            if score > -np.inf:
                scores[num_pushed] = score
                places[num_pushed] = parent, depth, rank + 1
                _sift_up(heap, size, num_pushed, scores)
                num_pushed += 1
                size += 1
        if depth + 1 < num_positions:
            score = scores[entry] + marginals[depth + 1, 0]
            if score > -np.inf:
                scores[num_pushed] = score
                places[num_pushed] = count, depth + 1, 0
                _sift_up(heap, size, num_pushed, scores)
                num_pushed += 1
                size += 1
    return count


@host_jit
@no_type_check
def _goes_first(entry: Any, other: Any, scores: Any) -> bool:
    return scores[entry] > scores[other] or (scores[entry] == scores[other] and entry < other)


@host_jit
@no_type_check
def _sift_up(heap: Any, hole: Any, entry: Any, scores: Any) -> None:
    """Put `entry` at the free place `hole`, or above it."""
    while hole > 0:
        above = (hole - 1) // 2
        if not _goes_first(entry, heap[above], scores):
            break
        heap[hole] = heap[above]
        hole = above
    heap[hole] = entry


@host_jit
@no_type_check
def _sift_down(heap: Any, size: Any, entry: Any, scores: Any) -> None:
    """Put `entry` at the top of the first `size` places, or below it."""
    hole = 0
    while 2 * hole + 1 < size:
        below = 2 * hole + 1
        if below + 1 < size and _goes_first(heap[below + 1], heap[below], scores):
            below += 1
        if not _goes_first(heap[below], entry, scores):
            break
        heap[hole] = heap[below]
        hole = below
    heap[hole] = entry
