"""What a round costs, by its size: measured once on a machine, followed while it works.

    round(b, n) = draft(b) + verify(1 + n rows) + other

METHODS section 3 (a) divides the expected tokens of a round by this time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from paceline.errors import CheckpointError
from paceline.types import MAX_NODES

MOST_UNSTEADY = 1.6
_STEP = 0.1
_FIRST_STEP, _LEAST_STEP = 0.5, 0.01
"""Of a size's own factor: nearly an average, or noise would make some sizes look cheap, and those would be chosen."""
_SEEN_ENOUGH = 2.0
_FORGET = 0.998
_MOST_SURPRISE, _EARLY = 0.5, 4.0
_INSTANT = 1e-9


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
        sizes, seconds = self.sizes, self.seconds
        right = bisect_left(sizes, size)
        if right == 0 or right == len(sizes):
            return seconds[0] if right == 0 else seconds[-1] + self._slope * (size - sizes[-1])
        share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])

    @cached_property
    def _slope(self) -> float:
        """Seconds of one more than the last."""
        last = self.sizes[-1]
        middle = max(0, bisect_right(self.sizes, last / 2) - 1)
        if self.sizes[middle] == last:
            return 0.0
        return (self.seconds[-1] - self.seconds[middle]) / (last - self.sizes[middle])


@dataclass(frozen=True)
class Costs:
    """Curves of one machine, target, drafter and dtype.

    `verify` holds a curve over rows of a pass (root included) for each measured context length, `draft` one over block
    sizes; `other` are the seconds of a round outside both models. `unsteadiness` is how many times as long the same
    pass took at one time than at another, as a median over sizes: near 1 where the machine did nothing else.
    """

    contexts: tuple[int, ...]
    verify: tuple[Curve, ...]
    draft: Curve
    other: float
    unsteadiness: float = 1.0

    @property
    def is_steady(self) -> bool:
        """Whether the curves are likely to be those of the machine, and not of what else it did."""
        return self.unsteadiness <= MOST_UNSTEADY

    def verify_s(self, rows: float, context: int) -> float:
        """Seconds of a pass over so many rows after `context` tokens."""
        left, right, share = self._around(context)
        start = self.verify[left].at(rows)
        return start + share * max(0.0, self.verify[right].at(rows) - start)

    def _around(self, context: int) -> tuple[int, int, float]:
        """The measured contexts below and above, and how far it is from the former to the latter: beyond the longest
        one, more than all the way."""
        right = min(max(1, bisect_left(self.contexts, context)), len(self.contexts) - 1)
        left = max(0, right - 1)
        if left == right:
            return left, right, 0.0
        share = (context - self.contexts[left]) / (self.contexts[right] - self.contexts[left])
        return left, right, max(0.0, share)

    def draft_s(self, block_size: float) -> float:
        """Seconds of a draft."""
        return self.draft.at(block_size)

    def as_json(self) -> dict[str, Any]:
        """Numbers only."""
        return {
            "contexts": list(self.contexts),
            "verify": [{"rows": list(c.sizes), "seconds": list(c.seconds)} for c in self.verify],
            "draft": {"block_sizes": list(self.draft.sizes), "seconds": list(self.draft.seconds)},
            "other": self.other,
            "unsteadiness": self.unsteadiness if math.isfinite(self.unsteadiness) else None,
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
            unsteadiness = math.inf if found["unsteadiness"] is None else float(found["unsteadiness"])
            costs = cls(contexts, verify, draft, float(found["other"]), unsteadiness)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"costs cannot be read ({error!r}); calibrate again.") from error
        costs.check()
        return costs

    def check(self) -> None:
        """Refuse what no machine takes.

        Raises:
            CheckpointError: contexts and curves do not fit together, or a size or time cannot be.
        """
        ascending = list(self.contexts) == sorted(set(self.contexts)) and len(self.contexts) == len(self.verify) > 0
        passes = all(curve.sizes[0] >= 1 and curve.seconds[0] > 0 for curve in self.verify)
        sizes = self.draft.sizes
        drafts = sizes[0] >= 2 and sizes[-1] <= 2 * MAX_NODES
        known = math.isfinite(self.other) and self.other >= 0 and self.unsteadiness >= 1.0
        if not (ascending and self.contexts[0] >= 1 and passes and drafts and known):
            raise CheckpointError("costs have contexts, sizes or times that cannot be; calibrate again.")


class LiveCosts:
    """Costs that follow the machine: each model's times are scaled by what its last rounds took over what was measured.

    A busy machine slows both models alike, or one of them more; either changes which tree pays. The passes have a
    factor for all sizes and one for each measured size, so that a curve of another shape than the measured one, as a
    machine gives that was busy then, is found too: where the sizes around those that are used are tried now and then.
    """

    def __init__(self, costs: Costs):
        self.costs = costs
        self.other = costs.other
        self._draft, self._verify = 0.0, 0.0
        self._sizes = costs.verify[0].sizes
        self._by_size = [0.0] * len(self._sizes)
        self._seen = [0.0] * len(self._sizes)
        self._rounds = 0

    def knows(self, rows: int) -> bool:
        """Whether passes of about this size were seen of late."""
        left, right, share = self._around(rows)
        return (1.0 - share) * self._seen[left] + share * self._seen[right] >= _SEEN_ENOUGH

    def verify_s(self, rows: float, context: int) -> float:
        """Seconds of one pass."""
        left, right, share = self._around(rows)
        by_size = (1.0 - share) * self._by_size[left] + share * self._by_size[right]
        return math.exp(self._verify + by_size) * self.costs.verify_s(rows, context)

    def draft_s(self, block_size: float) -> float:
        return math.exp(self._draft) * self.costs.draft_s(block_size)

    def learn(
        self, block_sizes: Sequence[int], rows: int, context: int, draft: float, verify: float, other: float
    ) -> None:
        """Seconds that one round took; `block_sizes` are those of the network's passes, of which there may be none."""
        if block_sizes:
            expected = sum(self.draft_s(size) for size in block_sizes)
            self._draft += _STEP * _bounded(_log_ratio(draft, expected))
        self._rounds += 1
        surprise = _log_ratio(verify, self.verify_s(rows, context))
        # the first rounds say most of what this machine is like now
        trust, most = max(_STEP, 1.0 / self._rounds), _MOST_SURPRISE + _EARLY / self._rounds
        moved = trust * _bounded(surprise, most)
        self._verify += moved
        self._learn_size(rows, _bounded(surprise - moved))
        self.other *= math.exp(_STEP * _bounded(_log_ratio(other, self.other)))

    def _learn_size(self, rows: int, surprise: float) -> None:
        """What a pass says of the measured sizes around its own, each by its share."""
        self._by_size = [_FORGET * value for value in self._by_size]
        self._seen = [_FORGET * count for count in self._seen]
        left, right, share = self._around(rows)
        for size, nearness in ((left, 1.0 - share), (right, share)):
            self._by_size[size] += surprise * nearness * max(_LEAST_STEP, _FIRST_STEP / (1.0 + self._seen[size]))
            self._seen[size] += nearness

    def _around(self, rows: float) -> tuple[int, int, float]:
        """The measured sizes below and above, and how near it is to the latter."""
        last = len(self._sizes) - 1
        right = min(max(1, bisect_left(self._sizes, rows)), last)
        left = max(0, right - 1)
        if left == right:
            return left, right, 1.0
        share = (rows - self._sizes[left]) / (self._sizes[right] - self._sizes[left])
        return left, right, min(max(share, 0.0), 1.0)


def _log_ratio(seen: float, expected: float) -> float:
    return math.log(max(seen, _INSTANT) / max(expected, _INSTANT))


def _bounded(surprise: float, most: float = _MOST_SURPRISE) -> float:
    """A hiccup of the machine is no change of it."""
    return min(max(surprise, -most), most)


def _curve(sizes: Sequence[Any], seconds: Sequence[Any]) -> Curve:
    return Curve(tuple(int(s) for s in sizes), tuple(float(s) for s in seconds))
