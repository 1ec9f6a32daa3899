"""Whether a stream has changed: Page's test on what each query accepted (Page 1954, Hinkley's form)."""

from __future__ import annotations

_EARLY = 8
"""Queries whose mean is taken before any alarm."""


class DriftDetector:
    """Rings when the mean has fallen or risen.

    Sums of deviations from the running mean, less an allowance, grow when the mean has moved; `threshold` is how far,
    in the unit of the values. With `allowance` of half the change to be found, it is found soonest for its false
    alarms (Lorden 1971).
    """

    def __init__(self, allowance: float = 0.1, threshold: float = 2.0):
        self.allowance, self.threshold = allowance, threshold
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.count, self.mean = 0, 0.0
        self._fall, self._rise = 0.0, 0.0

    def saw(self, value: float) -> bool:
        """One query's value; whether the stream has changed, after which the test begins anew."""
        self.count += 1
        self.mean += (value - self.mean) / self.count
        if self.count <= _EARLY:
            return False
        self._fall = max(0.0, self._fall + self.mean - value - self.allowance)
        self._rise = max(0.0, self._rise + value - self.mean - self.allowance)
        if max(self._fall, self._rise) <= self.threshold:
            return False
        self.reset()
        return True
