"""Whether a stream has changed: Page's test on what each query accepted (Page 1954, Hinkley's form)."""

from __future__ import annotations

import math

_EARLY = 12
"""Queries whose mean and spread are taken before any alarm."""
_LEAST_SPREAD = 0.05
"""Standard deviation that values are taken to have at least."""


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
