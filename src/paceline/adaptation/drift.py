"""Whether a stream has changed: Page's test on what each query shows (Page 1954, Hinkley's form)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

_EARLY = 12
"""Queries whose mean and spread are taken before any alarm."""
_LEAST_SPREAD = 0.05
"""Standard deviation that values are taken to have at least."""
_RECENT = 0.3
"""Weight of a query in the mean of the last ones."""
_LEAST_DISTANCE = 1e-6


class DriftDetector:
    """Rings when the mean has fallen or risen.

    Sums of deviations from the running mean, less an allowance, grow when the mean has moved; `threshold` is how far.
    Both are in standard deviations of the values, so that their scatter does not matter. With an
    `allowance` of half the change to be found, it is found soonest for its false alarms (Lorden 1971).
    """

    def __init__(self, allowance: float = 0.5, threshold: float = 8.0):
        self.allowance, self.threshold = allowance, threshold
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.count, self.mean = 0, 0.0
        self._squares, self._fall, self._rise = 0.0, 0.0, 0.0

    def saw(self, value: float) -> bool:
        """One query's value; whether the stream has changed, after which the test begins anew."""
        deviation = value - self.mean
        if self.count >= _EARLY and self._rings(deviation / self._spread):
            self.reset()
            return True
        self.count += 1
        self.mean += deviation / self.count
        self._squares += deviation * (value - self.mean)
        return False

    def _rings(self, deviation: float) -> bool:
        self._fall = max(0.0, self._fall - deviation - self.allowance)
        self._rise = max(0.0, self._rise + deviation - self.allowance)
        return max(self._fall, self._rise) > self.threshold

    @property
    def _spread(self) -> float:
        return max(_LEAST_SPREAD, math.sqrt(self._squares / (self.count - 1)))


class NoveltyDetector:
    """Rings when queries have become more alike, or less: the same test on how far each one is from those before it.

    What is accepted says little of this where a drafter is bad at both kinds; that they repeat is what makes them worth
    learning.
    """

    def __init__(self, detector: DriftDetector | None = None) -> None:
        self._detector = detector or DriftDetector()
        self._recent: Tensor | None = None

    def saw(self, features: Float[Tensor, "n f"]) -> bool:
        """One query's features, of all its tokens; whether the stream has changed."""
        if len(features) < 2:
            return False
        mean = normalize(features[1:].float(), dim=-1).mean(0)  # the first token is an outlier in most models
        if self._recent is None:
            self._recent = mean
            return False
        distance = float((mean - self._recent).norm())
        self._recent = torch.lerp(self._recent, mean, _RECENT)
        return self._detector.saw(math.log(max(distance, _LEAST_DISTANCE)))
