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


@dataclass(frozen=True)
class Steps:
    """A tree as steps: for each node its parent (0: the root), its depth, and the chance that it follows its parent."""

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
        return cls(parents, np.array(depths[1:], np.int64), chances)

    def taken(self, path: Sequence[int]) -> list[tuple[int, float, bool]]:
        """What the target said of the children of every accepted node that has any: their depth, the chance of all of
        them together, and whether one was taken. `path` are the accepted nodes, numbered from 1."""
        found = []
        for depth, parent in enumerate([0, *path], start=1):
            children = self.parents == parent
            if children.any():
                found.append((depth, min(1.0, float(self.chances[children].sum())), len(path) >= depth))
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
        """The same tree with the chances that experience gives it; none is above 1."""
        deepest = int(steps.depths.max(initial=0))
        factors = np.array([math.nan, *(self.factor(depth) for depth in range(1, deepest + 1))])
        return Steps(steps.parents, steps.depths, np.minimum(1.0, steps.chances * factors[steps.depths]))

    def learn(self, steps: Steps, path: Sequence[int]) -> None:
        """One tree as the surrogate had it, and the nodes of it that were accepted (numbered from 1)."""
        for depth, chance, hit in steps.taken(path):
            missing = depth - len(self.expected)
            self.expected.extend([0.0] * missing)
            self.hits.extend([0.0] * missing)
            self.expected[depth - 1] = _MEMORY * self.expected[depth - 1] + chance
            self.hits[depth - 1] = _MEMORY * self.hits[depth - 1] + hit
