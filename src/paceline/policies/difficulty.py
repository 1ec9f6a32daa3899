"""How hard one request is to draft, as its own rounds show it: a posterior over one number.

A node's children hold the target's next token with a chance c, as the calibrated drafter has it for requests of every
kind. For a request of difficulty d the odds of that chance are exp(-d) times as high. Where the prior is a normal one,
every accepted node's children tell of d by Bayes' rule: one of them was taken or none. Older rounds fade, because a
text does not stay as hard as it was.

With a chance of 1 / (1 + exp(d - m)) at every step, a round without an end keeps exp(m - d) drafted tokens on average;
so log(tau - 1) is m - d, and a predictor of that logarithm is one of the difficulty.

Letters: g points of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from paceline.policies.calibration import Outcome, Steps

GRID: Float64[np.ndarray, " g"] = np.linspace(-3.0, 3.0, 25)
_HARDER, _SQUARES = np.exp(GRID), GRID**2
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

    def chances(self, chances: Sequence[float]) -> list[float]:
        """What these chances are for this request."""
        points = self._points()
        return [sum(weight * _at(chance, difficulty) for difficulty, weight in points) for chance in chances]

    def along_paths(self, steps: Steps) -> list[float]:
        """The chance of each node's whole path, over the difficulties that are possible: at three points of the normal
        distribution that has the posterior's mean and variance (Gauss-Hermite)."""
        found = [0.0] * len(steps.parents)
        totals = steps.totals()
        for difficulty, weight in self._points():
            ratios = [_at(total, difficulty) / max(total, _LEAST) for total in totals]
            paths = [1.0]
            for node, (parent, chance) in enumerate(zip(steps.parents, steps.chances, strict=True)):
                paths.append(paths[parent] * min(1.0, chance * ratios[parent]))
                found[node] += weight * paths[-1]
        return found

    def saw(self, outcomes: Sequence[Outcome]) -> None:
        """One round."""
        self._log_weights = self._prior + _MEMORY * (self._log_weights - self._prior)
        for seen in outcomes:
            likelihood = _shifted(seen.chance)
            self._log_weights += np.log(likelihood if seen.hit else 1.0 - likelihood)

    def _points(self) -> tuple[tuple[float, float], ...]:
        weights = self.weights
        mean = float(weights @ GRID)
        away = math.sqrt(3.0 * max(0.0, float(weights @ _SQUARES) - mean * mean))
        return (mean - away, 1 / 6), (mean, 2 / 3), (mean + away, 1 / 6)


def _odds(chance: float) -> float:
    bounded = min(max(chance, _LEAST), 1.0 - _LEAST)
    return bounded / (1.0 - bounded)


def _at(chance: float, difficulty: float) -> float:
    """The chance at one difficulty."""
    odds = _odds(chance)
    return odds / (odds + math.exp(difficulty))


def _shifted(chance: float) -> Float64[np.ndarray, " g"]:
    """The chance at every difficulty of the grid."""
    odds = _odds(chance)
    found: np.ndarray = odds / (odds + _HARDER)
    return found
