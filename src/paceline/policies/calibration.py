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
from jaxtyping import Float64

_PRIOR = 8.0
"""Hits that the surrogate is believed to have had before anything was seen."""
_MEMORY = 0.995
_MOST = 4.0
"""A factor's bound, above and (inverted) below."""


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

    def path_probabilities(
        self, log_probs: Sequence[float], parents: Sequence[int], depths: Sequence[int]
    ) -> Float64[np.ndarray, " n"]:
        """The chance of each node to be accepted: never above its parent's."""
        said, chances = [0.0, *log_probs], [1.0]
        for index, (parent, depth) in enumerate(zip(parents, depths, strict=True)):
            step = math.exp(min(0.0, said[index + 1] - said[parent]))
            chances.append(chances[parent] * min(1.0, step * self.factor(depth)))
        return np.array(chances[1:])

    def learn(
        self, log_probs: Sequence[float], parents: Sequence[int], depths: Sequence[int], path: Sequence[int]
    ) -> None:
        """One tree and the nodes of it that were accepted (numbers from 1, the root is 0)."""
        accepted = {0, *path}
        expected: dict[int, float] = {}
        for index, parent in enumerate(parents):
            if parent in accepted:
                given = log_probs[parent - 1] if parent else 0.0
                step = math.exp(min(0.0, log_probs[index] - given))
                expected[depths[index]] = expected.get(depths[index], 0.0) + step
        for depth, total in expected.items():
            self._extend(depth)
            self.expected[depth - 1] = _MEMORY * self.expected[depth - 1] + min(1.0, total)
            self.hits[depth - 1] = _MEMORY * self.hits[depth - 1] + (len(path) >= depth)

    def _extend(self, depth: int) -> None:
        missing = depth - len(self.expected)
        self.expected.extend([0.0] * missing)
        self.hits.extend([0.0] * missing)
