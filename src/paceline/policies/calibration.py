"""How often the surrogate is right: its step probabilities against what the target accepted, depth by depth.

Below an accepted node the surrogate gives its children probabilities; the target takes at most one of them. Over many
rounds the children's probabilities should add up to the number of times that one was taken. The ratio of the two, kept
with a prior, corrects the surrogate: one factor for each depth (METHODS section 3 (b)).

Letters: n nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int64

from paceline.tree import DraftTree

_PRIOR = 8.0
"""Hits that the surrogate is believed to have had before anything was seen."""
_MEMORY = 0.995
_MOST = 4.0
"""A factor's bound, above and (inverted) below."""
_SURE = 0.98
"""The most that the children of a node can have between them: what is certain fails now and then."""


@dataclass(frozen=True)
class Outcome:
    """What the target said of the children of an accepted node: their depth, the chance of all of them together, and
    whether one was taken."""

    depth: int
    chance: float
    hit: bool


@dataclass(frozen=True)
class Steps:
    """A tree as steps: for each node its parent (0: the root), its depth, and the chance that it follows its parent.

    The chances of siblings add up to less than 1, also where two drafters that were sure of different tokens proposed
    them.
    """

    parents: Int64[np.ndarray, " n"]
    depths: Int64[np.ndarray, " n"]
    chances: Float64[np.ndarray, " n"]

    @classmethod
    def of(cls, tree: DraftTree) -> Steps:
        """The steps that the surrogate says."""
        parents = tree.parents.cpu().numpy()
        paths = np.concatenate([[0.0], tree.log_probs.cpu().double().numpy()])
        depths = [0]
        for parent in parents.tolist():
            depths.append(1 + depths[parent])
        chances = np.exp(np.minimum(0.0, paths[1:] - paths[parents]))
        return cls(parents, np.array(depths[1:], np.int64), _sharing(parents, chances))

    def times(self, factors: Float64[np.ndarray, " n"]) -> Steps:
        """The same tree with other chances."""
        return Steps(self.parents, self.depths, _sharing(self.parents, self.chances * factors))

    def taken(self, path: Sequence[int]) -> list[Outcome]:
        """What a round says of every accepted node that has children. `path` are the accepted nodes, from 1 on."""
        found = []
        for depth, parent in enumerate([0, *path], start=1):
            children = self.parents == parent
            if children.any():
                found.append(Outcome(depth, float(self.chances[children].sum()), len(path) >= depth))
        return found

    def along_paths(self) -> Float64[np.ndarray, " n"]:
        """The chance of each node's whole path."""
        found = [1.0]
        for parent, chance in zip(self.parents.tolist(), self.chances.tolist(), strict=True):
            found.append(found[parent] * chance)
        return np.array(found[1:])


@dataclass
class Calibration:
    """Factors by depth; kept by whoever asks for them, and taught by rounds."""

    expected: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)

    def factor(self, depth: int) -> float:
        """What to multiply the step probabilities at this depth (1: children of the anchor) with."""
        if depth > len(self.expected):
            return 1.0
        ratio = (self.hits[depth - 1] + _PRIOR) / (self.expected[depth - 1] + _PRIOR)
        return min(max(ratio, 1.0 / _MOST), _MOST)

    def corrected(self, steps: Steps) -> Steps:
        """The same tree with the chances that experience gives it."""
        deepest = int(steps.depths.max(initial=0))
        factors = np.array([math.nan, *(self.factor(depth) for depth in range(1, deepest + 1))])
        return steps.times(factors[steps.depths])

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """One round: the surrogate's chances, and what came of them."""
        for seen in outcomes:
            missing = seen.depth - len(self.expected)
            self.expected.extend([0.0] * missing)
            self.hits.extend([0.0] * missing)
            self.expected[seen.depth - 1] = _MEMORY * self.expected[seen.depth - 1] + seen.chance
            self.hits[seen.depth - 1] = _MEMORY * self.hits[seen.depth - 1] + seen.hit


def _sharing(parents: Int64[np.ndarray, " n"], chances: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Chances of which those of siblings add up to `_SURE` at most."""
    totals = np.bincount(parents, chances, 1 + len(parents))
    found: np.ndarray = chances * np.minimum(1.0, _SURE / np.maximum(totals, _SURE))[parents]
    return found
