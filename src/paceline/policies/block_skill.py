"""What a block of each size brings, learned from all requests' rounds.

A drafted token is kept with the odds exp(m + s(b) + x): m is the drafter's skill, s(b) what its block size adds, and x
what is known of the request. A round of a block of b is b - 1 trials at most, the last of them a failure where the
target refused what was drafted; m and s follow them by stochastic gradients of the log-likelihood. s fades towards
0, so that a size of which little is known is judged as all the others are, and no bad luck lasts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_STEP, _SIZE_STEP = 0.05, 0.015
_FADE = 0.999
_MOST = 4.0


class BlockSkill:
    """Skills by block size."""

    def __init__(self, sizes: Sequence[int]):
        self.sizes = tuple(sizes)
        self._all = 0.0
        self._of = dict.fromkeys(self.sizes, 0.0)

    def chance(self, size: int, log_odds: float) -> float:
        """That a drafted token is kept; `log_odds` are what is known of the request."""
        total = self._all + self._of.get(size, 0.0) + log_odds
        return 1.0 / (1.0 + math.exp(-min(max(total, -_MOST), _MOST)))

    def tokens(self, size: int, log_odds: float) -> float:
        """Tokens of a round with a block of this size, bonus included; what copies add beyond the block is left out."""
        chance = self.chance(size, log_odds)
        return float(1.0 - chance**size) / (1.0 - chance)

    def learn(self, size: int, kept: int, refused: bool, log_odds: float) -> None:
        """One round that kept so many drafted tokens; `refused`: the target wanted another one than any that followed,
        and the path did not end with the tree."""
        hits = min(kept, size - 1)
        misses = int(refused and kept < size - 1)
        chance = self.chance(size, log_odds)
        gradient = hits * (1.0 - chance) - misses * chance
        self._all += _STEP * gradient
        for each in self._of:
            self._of[each] *= _FADE
        if size in self._of:
            self._of[size] += _SIZE_STEP * gradient
