"""Growing a tree level by level in shapes known beforehand: what `top_k` and the device's best-first share.

A level is scored from the one before it: the i-th best parent tries the `num_children[i]` likeliest tokens of
the next position. With num_children = (4, 2, 1, 1), tried pairs are marked:

              token  1st 2nd 3rd 4th
    best parent       x   x   x   x
    second            x   x
    third             x
    fourth            x

The best pairs of each level are kept, sorted; at the end the best nodes of all levels are the tree. Scores
never increase from parent to child, and a stable sort over levels in order keeps parents first where they
tie (q = 1 exactly), so the tree is prefix-closed and parents come before children.

Letters: k candidates of a position, w nodes kept of a level, p pairs tried, n nodes of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from paceline.tree.draft_tree import DraftTree
from paceline.tree.marginals import Marginals


@dataclass(frozen=True)
class PaddedTree:
    """A tree of fixed shape: the first `num_nodes` nodes count, those after them cannot occur (-inf)."""

    tokens: Int64[Tensor, " n"]
    parents: Int64[Tensor, " n"]
    log_probs: Float32[Tensor, " n"]
    num_nodes: Int64[Tensor, ""]

    def trim(self) -> DraftTree:
        """The tree without its padding; the only place that waits for the device."""
        count = int(self.num_nodes)
        return DraftTree(self.tokens[:count], self.parents[:count], self.log_probs[:count])


@dataclass(frozen=True)
class Level:
    """The nodes kept of one level, best first; `parents` index the level before."""

    tokens: Int64[Tensor, " w"]
    parents: Int64[Tensor, " w"]
    log_probs: Float32[Tensor, " w"]


def grow_by_levels(marginals: Marginals, num_children: Sequence[int], budget: int) -> PaddedTree:
    """The best `budget` nodes among those that the pairs above can reach; no step waits for the device.

    `num_children` is non-increasing and at most the number of candidates of a position.

    Raises:
        InputError: a negative budget.
    """
    num_nodes = marginals.max_nodes(budget)
    log_probs = marginals.log_probs
    pairs = _Pairs(num_children, log_probs.device)
    levels: list[Level] = []
    parents = log_probs.new_zeros(1)  # the root alone
    for tokens, scores in zip(marginals.tokens, log_probs, strict=True):
        levels.append(_next_level(parents, tokens, scores, pairs, num_nodes))
        parents = levels[-1].log_probs
    return _best_nodes(levels, num_nodes, log_probs.device)


class _Pairs:
    """The (parent, rank) pairs to try, sorted by parent, so that fewer parents mean a prefix."""

    def __init__(self, num_children: Sequence[int], device: torch.device):
        self._ends = list(accumulate(num_children))
        counts = torch.tensor(num_children, device=device)
        parents = torch.arange(len(num_children), device=device)
        self._parents = parents.repeat_interleave(counts, output_size=self._ends[-1])
        first = (counts.cumsum(0) - counts)[self._parents]
        self._ranks = torch.arange(self._ends[-1], device=device) - first

    def of(self, num_parents: int) -> tuple[Int64[Tensor, " p"], Int64[Tensor, " p"]]:
        """The pairs of the first `num_parents` parents."""
        end = self._ends[min(num_parents, len(self._ends)) - 1]
        return self._parents[:end], self._ranks[:end]


def _next_level(
    parents: Float32[Tensor, " w"],
    tokens: Int64[Tensor, " k"],
    log_probs: Float32[Tensor, " k"],
    pairs: _Pairs,
    max_kept: int,
) -> Level:
    """The best `max_kept` children of parents of these log-probs, best first."""
    tried, ranks = pairs.of(len(parents))
    scores = parents[tried] + log_probs[ranks]
    scores, order = scores.sort(stable=True, descending=True)
    scores, order = scores[:max_kept], order[:max_kept]
    return Level(tokens[ranks[order]], tried[order], scores)


def _best_nodes(levels: Sequence[Level], num_nodes: int, device: torch.device) -> PaddedTree:
    """The best nodes of all levels, likeliest first; parents renumbered in the index space of the pass."""
    tokens = torch.cat([level.tokens for level in levels])
    log_probs = torch.cat([level.log_probs for level in levels])
    # Place 0 is the root, place 1 + i the i-th node of all levels: parents shift by the start of their level.
    starts = [0, *accumulate((len(level.tokens) for level in levels), initial=1)]
    parents = torch.cat([level.parents + start for level, start in zip(levels, starts, strict=False)])
    log_probs, order = log_probs.sort(stable=True, descending=True)
    log_probs, order = log_probs[:num_nodes], order[:num_nodes]
    places = torch.zeros(1 + len(tokens), dtype=torch.int64, device=device)
    places[1 + order] = torch.arange(1, 1 + len(order), device=device)
    return PaddedTree(tokens[order], places[parents[order]], log_probs, (log_probs > -torch.inf).sum())
