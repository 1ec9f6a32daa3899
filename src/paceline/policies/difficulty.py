"""How hard one request is to draft, as its own rounds show it: a posterior over one number.

A node's children hold the target's next token with a chance c, as the calibrated drafter has it for requests of every
kind. For a request of difficulty d the odds of that chance are exp(-d) times as high. Where the prior is a normal one,
every accepted node's children tell of d by Bayes' rule: one of them was taken or none. Older rounds fade, because a
text does not stay as hard as it was.

With a chance of 1 / (1 + exp(d - m)) at every step, a round without an end keeps exp(m - d) drafted tokens on average;
so log(tau - 1) is m - d, and a predictor of that logarithm is one of the difficulty.

Letters: n nodes, g points of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from paceline.policies.calibration import Outcome, Steps

GRID: Float64[np.ndarray, " g"] = np.linspace(-3.0, 3.0, 25)
_MEMORY = 0.97
_LEAST = 0.02
"""No chance is nearer to 0 or 1: what never happens by the drafter's word happens now and then."""


class Difficulty:
    """The posterior on a grid, from a normal prior.

    Args:
        mean: what is expected of the request before its first round; 0 is a typical one, more is harder.
        spread: standard deviation of the prior.
    """

    def __init__(self, mean: float = 0.0, spread: float = 0.7):
        self._prior = -0.5 * ((GRID - mean) / spread) ** 2
        self._log_weights = self._prior.copy()

    @property
    def weights(self) -> Float64[np.ndarray, " g"]:
        """The posterior, summing to 1."""
        found: np.ndarray = np.exp(self._log_weights - self._log_weights.max())
        return found / found.sum()

    @property
    def mean(self) -> float:
        """Expected difficulty."""
        return float(self.weights @ GRID)

    def chance(self, chance: float) -> float:
        """What a chance is for this request."""
        return float(self.weights @ _shifted(np.array([chance]))[0])

    def along_paths(self, steps: Steps) -> Float64[np.ndarray, " n"]:
        """The chance of each node's whole path, over all difficulties that are possible."""
        count = len(steps.parents)
        totals = np.bincount(steps.parents, steps.chances, 1 + count)
        ratios = _shifted(totals) / np.maximum(totals, _LEAST)[:, None]
        factors = np.minimum(1.0, steps.chances[:, None] * ratios[steps.parents])
        paths = np.ones((1 + count, len(GRID)))
        for node, parent in enumerate(steps.parents.tolist(), start=1):
            paths[node] = paths[parent] * factors[node - 1]
        found: np.ndarray = paths[1:] @ self.weights
        return found

    def saw(self, outcomes: Sequence[Outcome]) -> None:
        """One round."""
        self._log_weights = self._prior + _MEMORY * (self._log_weights - self._prior)
        for seen in outcomes:
            likelihood = _shifted(np.array([seen.chance]))[0]
            self._log_weights += np.log(likelihood if seen.hit else 1.0 - likelihood)


def _shifted(chances: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n g"]:
    """The chances at every difficulty."""
    chances = chances.clip(_LEAST, 1.0 - _LEAST)
    odds = chances / (1.0 - chances)
    return 1.0 / (1.0 + np.exp(GRID) / odds[:, None])
