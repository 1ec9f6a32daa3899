"""How often the surrogate is right: its step probabilities against what the target accepted, depth by depth.

Below an accepted node the surrogate gives its children probabilities; the target takes at most one of them. Over many
rounds the children's probabilities should add up to the number of times that one was taken. The ratio of the two, kept
with a prior, corrects the surrogate: one factor for each depth (METHODS section 3 (b)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    them. Plain lists: trees are small, and this runs between any two passes.
    """

    parents: list[int]
    depths: list[int]
    chances: list[float]

    @classmethod
    def of(cls, tree: DraftTree) -> Steps:
        """The steps that the surrogate says."""
        parents, paths = tree.parents.tolist(), [0.0, *tree.log_probs.tolist()]
        depths, chances = [0], []
        for node, parent in enumerate(parents, start=1):
            depths.append(1 + depths[parent])
            chances.append(math.exp(min(0.0, paths[node] - paths[parent])))
        return cls(parents, depths[1:], _sharing(parents, chances))

    def first(self, count: int) -> Steps:
        """Those of the first nodes."""
        return Steps(self.parents[:count], self.depths[:count], self.chances[:count])

    def times(self, factors: Sequence[float]) -> Steps:
        """The same tree with chances changed by a factor for each depth, from 1 on."""
        chances = [chance * factors[depth - 1] for chance, depth in zip(self.chances, self.depths, strict=True)]
        return Steps(self.parents, self.depths, _sharing(self.parents, chances))

    def totals(self) -> list[float]:
        """The chances of every node's children together; of the root's first."""
        return _totals(self.parents, self.chances)

    def taken(self, path: Sequence[int]) -> list[Outcome]:
        """What a round says of every accepted node that has children. `path` are the accepted nodes, from 1 on."""
        totals, parents = self.totals(), set(self.parents)
        return [
            Outcome(depth, totals[parent], len(path) >= depth)
            for depth, parent in enumerate([0, *path], start=1)
            if parent in parents
        ]

    def along_paths(self) -> list[float]:
        """The chance of each node's whole path."""
        found = [1.0]
        for parent, chance in zip(self.parents, self.chances, strict=True):
            found.append(found[parent] * chance)
        return found[1:]


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
        return steps.times([self.factor(depth) for depth in range(1, max(steps.depths, default=0) + 1)])

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """One round: the surrogate's chances, and what came of them."""
        for seen in outcomes:
            missing = seen.depth - len(self.expected)
            self.expected.extend([0.0] * missing)
            self.hits.extend([0.0] * missing)
            self.expected[seen.depth - 1] = _MEMORY * self.expected[seen.depth - 1] + seen.chance
            self.hits[seen.depth - 1] = _MEMORY * self.hits[seen.depth - 1] + seen.hit


def _totals(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    found = [0.0] * (1 + len(parents))
    for parent, chance in zip(parents, chances, strict=True):
        found[parent] += chance
    return found


def _sharing(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    """Chances of which those of siblings add up to `_SURE` at most."""
    totals = _totals(parents, chances)
    if max(totals) <= _SURE:
        return list(chances)
    shares = [_SURE / max(total, _SURE) for total in totals]
    return [chance * shares[parent] for parent, chance in zip(parents, chances, strict=True)]
