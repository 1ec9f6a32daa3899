"""What a round costs, by its size: measured once on a machine, followed while it works.

    round(b, n) = draft(b) + verify(1 + n rows) + other

METHODS section 3 (a) divides the expected tokens of a round by this time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from paceline.errors import CheckpointError

_MEMORY = 0.9
_LARGEST_STEP = 2.0
"""How far one round may move a scale: a hiccup of the machine is no change of it."""


@dataclass(frozen=True)
class Curve:
    """Seconds at measured sizes, straight between them; beyond the last, as steep as from half of it on.

    More never takes less: a size that was measured faster than a smaller one takes what the smaller one does.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        fits = len(self.sizes) == len(self.seconds) >= 1 and list(self.sizes) == sorted(set(self.sizes))
        if not fits or not all(math.isfinite(s) and s >= 0 for s in self.seconds) or self.sizes[0] < 0:
            raise CheckpointError("a cost curve has sizes and seconds that do not fit together; calibrate again.")
        object.__setattr__(self, "seconds", tuple(accumulate(self.seconds, max)))

    def at(self, size: float) -> float:
        """Seconds at any size; below the first measured one, those of the first."""
        return interpolated(self.sizes, self.seconds, size)


def interpolated(sizes: Sequence[int], seconds: Sequence[float], size: float) -> float:
    """The curve through the points; see `Curve`."""
    if size <= sizes[0] or len(sizes) == 1:
        return seconds[0]
    if size > sizes[-1]:
        middle = min(max(0, bisect_right(sizes, sizes[-1] / 2) - 1), len(sizes) - 2)
        slope = (seconds[-1] - seconds[middle]) / (sizes[-1] - sizes[middle])
        return seconds[-1] + max(0.0, slope) * (size - sizes[-1])
    right = max(1, bisect_left(sizes, size))
    share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])


@dataclass(frozen=True)
class Costs:
    """Curves of one machine, target, drafter and dtype.

    `verify` holds a curve over rows of a pass (root included) for each measured context length, `draft` one over block
    sizes; `other` are the seconds of a round outside both models.
    """

    contexts: tuple[int, ...]
    verify: tuple[Curve, ...]
    draft: Curve
    other: float

    def verify_s(self, rows: int, context: int) -> float:
        """Seconds of a pass over `rows` nodes after `context` tokens."""
        return interpolated(self.contexts, [curve.at(rows) for curve in self.verify], context)

    def draft_s(self, block_size: int) -> float:
        """Seconds of a draft."""
        return self.draft.at(block_size)

    def as_json(self) -> dict[str, Any]:
        """Numbers only."""
        return {
            "contexts": list(self.contexts),
            "verify": [{"rows": list(c.sizes), "seconds": list(c.seconds)} for c in self.verify],
            "draft": {"block_sizes": list(self.draft.sizes), "seconds": list(self.draft.seconds)},
            "other": self.other,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Costs:
        """Read back.

        Raises:
            CheckpointError: something is missing, or is no number.
        """
        try:
            verify = tuple(_curve(c["rows"], c["seconds"]) for c in found["verify"])
            draft = _curve(found["draft"]["block_sizes"], found["draft"]["seconds"])
            contexts = tuple(int(c) for c in found["contexts"])
            other = float(found["other"])
            ascending = list(contexts) == sorted(set(contexts)) and len(contexts) == len(verify) > 0
            if not ascending or not math.isfinite(other) or other < 0:
                raise CheckpointError("costs have contexts and curves that do not fit together; calibrate again.")
            return cls(contexts, verify, draft, other)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"costs cannot be read ({error!r}); calibrate again.") from error


class LiveCosts:
    """Costs that follow the machine: each model's times are scaled by what its last rounds took over what was measured.

    A busy machine slows both models alike, or one of them more; either changes which tree pays.
    """

    def __init__(self, costs: Costs):
        self.costs = costs
        self.draft_scale = self.verify_scale = 1.0
        self.other = costs.other

    def verify_s(self, rows: int, context: int) -> float:
        return self.verify_scale * self.costs.verify_s(rows, context)

    def draft_s(self, block_size: int) -> float:
        return self.draft_scale * self.costs.draft_s(block_size)

    def learn(self, block_size: int, rows: int, context: int, draft: float, verify: float, other: float) -> None:
        """Seconds that one round took; without a draft, `draft` is 0 and says nothing."""
        if draft > 0.0:
            self.draft_scale = _followed(self.draft_scale, draft / max(1e-9, self.costs.draft_s(block_size)))
        self.verify_scale = _followed(self.verify_scale, verify / max(1e-9, self.costs.verify_s(rows, context)))
        self.other = _followed(self.other, other)


def _followed(before: float, now: float) -> float:
    bounded = min(max(now, before / _LARGEST_STEP), before * _LARGEST_STEP)
    return _MEMORY * before + (1.0 - _MEMORY) * bounded


def _curve(sizes: Sequence[Any], seconds: Sequence[Any]) -> Curve:
    return Curve(tuple(int(s) for s in sizes), tuple(float(s) for s in seconds))
