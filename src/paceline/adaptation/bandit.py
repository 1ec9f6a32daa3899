"""Whether to update a drafter, and how much of it: a bandit that counts its own cost (SpecBlock, arXiv 2605.07243,
which describes such a one but publishes none).

Arms are ways to update; to skip is always possible and costs nothing. An update of arm a costs c_a seconds, measured,
and changes the speed of the stream by a factor exp(r g_a), where r is the share of the stream that recurs: what never
comes again cannot be learned in a few steps. Over a remaining stream of h seconds it saves

    h (1 - exp(-r g_a)) - c_a

Each g_a, the gain where everything recurs, has a normal posterior: a normal prior, normal noise on every measured gain
(the fewer rounds it was measured on, the more), and more variance after every update, because what an update gained
says less and less about the next. Thompson sampling (Thompson 1933; with a linear reward, Agrawal & Goyal 2013): a gain
is drawn from each posterior, and the arm that would save most is taken, if it saves anything. After an update nothing
is drawn for a few queries, and for twice as many after each one that did not pay, and after each draw that took none: a
learned stream has nothing more to teach, and chance would try for ever.

Guarantee: seconds that updates cost and did not bring back never pass `max_loss` of the stream, elapsed and expected,
by more than the last update took longer than expected: an arm is allowed only while what was lost, and what it costs,
stay within that (a conservative bandit, Wu et al. 2016). What updates bring back is counted from the speed-up over the
drafter that came, which every update measures anew, less three standard deviations of that: a gain that chance
showed once is not counted on for long. While nothing is lost, an arm that is not allowed is believed to cost a little
less with every query, for the machine may be faster than the prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_WEAR = 0.01
"""What is added to a posterior's standard deviation by an update, in squares."""
_COST_STEP, _COST_DECAY = 0.5, 0.98
_LEAST_RECURRING = 0.01
_SURE = 3.0
"""Standard deviations by which what is counted on stays below what was measured."""
_LEAST_WAIT, _MOST_WAIT = 3, 192
"""Queries between updates."""


@dataclass
class Arm:
    """A way to update: its prior gain (logarithm of the speed-up where everything recurs, with a standard deviation),
    and the seconds it is expected to take before it was measured."""

    name: str
    prior_mean: float
    prior_spread: float
    cost: float

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Believe the prior again; costs are those of the machine and stay."""
        self.mean, self.variance = self.prior_mean, self.prior_spread**2

    def saw(self, gain: float, noise: float, cost: float, recurring: float = 1.0) -> None:
        """An update, its measured gain with the standard deviation of that, its seconds, and what recurred."""
        recurring = max(recurring, _LEAST_RECURRING)
        trust = self.variance / (self.variance + (noise / recurring) ** 2)
        self.mean += trust * (gain / recurring - self.mean)
        self.variance = (1 - trust) * self.variance + _WEAR**2
        self.cost += _COST_STEP * (cost - self.cost)


class Bandit:
    """Chooses between arms; `max_loss` is the share of the stream that updates may lose in the end."""

    def __init__(self, arms: Sequence[Arm], max_loss: float = 0.01, seed: int = 0):
        self.arms = {arm.name: arm for arm in arms}
        self.max_loss = max_loss
        self.lost = 0.0
        """Seconds that updates took, less those that they have brought back; 0 at least."""
        self._horizon, self._recurring = 0.0, 1.0
        self.sure_gain = 0.0
        """Logarithm of the speed-up over the drafter that came that is counted on."""
        self.rest = 0
        """Queries during which nothing will be drawn."""
        self._wait = _LEAST_WAIT
        self._rng = np.random.default_rng(seed)

    def served(self, seconds: float) -> None:
        """Serving at the speed that kept updates gave: what they bring back."""
        self.lost = max(0.0, self.lost - seconds * math.expm1(self.sure_gain))

    def choose(self, elapsed: float, horizon: float, queries: int = 1, recurring: float = 1.0) -> str | None:
        """After some queries, the arm to take, or None to skip; seconds of the stream so far, and those still
        expected, and the share of it that recurs."""
        self._horizon, self._recurring = horizon, recurring
        if self.rest > 0:
            self.rest = max(0, self.rest - queries)
            return None
        allowed = self.max_loss * (elapsed + horizon) - self.lost
        best, most, has_drawn = None, 0.0, False
        for arm in self.arms.values():
            drawn = float(self._rng.normal(arm.mean, math.sqrt(arm.variance)))
            if arm.cost > allowed:
                arm.cost *= 1.0 if self.lost else _COST_DECAY
                continue
            has_drawn = True
            saved = -horizon * math.expm1(-drawn * recurring) - arm.cost
            if saved > most:
                best, most = arm.name, saved
        if best is None and (has_drawn or self.lost):
            self._put_off()
        return best

    def saw(self, name: str, gain: float, noise: float, cost: float, total: float) -> None:
        """An update: its measured gain with the standard deviation of that, its seconds, and the gain over the drafter
        that came of what serves after it."""
        self.arms[name].saw(gain, noise, cost, self._recurring)
        self.lost += cost
        self.sure_gain = max(0.0, total - _SURE * noise)
        pays = -self._horizon * math.expm1(-(gain - _SURE * noise)) > cost
        if pays:
            self._wait = _LEAST_WAIT
        self._put_off(1 if pays else 2)

    def wasted(self, cost: float) -> None:
        """An update that was given up, or that came too late to be of use: its seconds are lost."""
        self.lost += cost
        self._put_off()

    def _put_off(self, times: int = 2) -> None:
        self._wait = min(times * self._wait, _MOST_WAIT)
        self.rest = self._wait

    def drifted(self) -> None:
        """The stream has changed: gains of before say nothing, neither of arms nor of what is brought back."""
        self.sure_gain = 0.0
        self._wait, self.rest = _LEAST_WAIT, 0
        for arm in self.arms.values():
            arm.forget()
