"""Whether a draft network should run or rest: what rounds with it and without it bring for their time.

Times are counted in plain rounds of the same batch and context, as they cost at that moment: a round that takes 1.2
plain rounds and gives 1.8 tokens has a speed of 1.5. So rounds of a busy minute and of a quiet one compare.

Where rounds without the network are faster, it rests, and is tried again at the next round that is a multiple of 2,
then of 4, 8 ... PROBE_EVERY, so that the sequences of a batch try again together. A request that is expected to do no
better begins with a rest, until a multiple of 16, and of twice that after each trial that did not pay; but every fourth
such one begins with a trial, or short answers would never show that times have changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PROBE_EVERY = 64
_FIRST_REST, _FIRST_REST_EXPECTED, _TRY_EVERY = 2, 16, 4
_PRIOR_ROUNDS = 4.0
_PRIOR_SPEED = 1.2
_ENOUGH_ROUNDS = 8.0
"""Before so many rounds, a request begins with a draft whatever the others have shown."""
_HYSTERESIS = 1.02
"""What rest must promise more than a draft."""
_MEMORY, _LONG_MEMORY = 0.93, 0.98


@dataclass
class Speed:
    """Tokens over time, of rounds that fade."""

    memory: float = _MEMORY
    tokens: float = 0.0
    cost: float = 0.0
    rounds: float = 0.0

    def over(self, prior: float) -> float:
        """Tokens in the time of a plain round; `prior` before anything was seen."""
        return (self.tokens + _PRIOR_ROUNDS * prior) / (self.cost + _PRIOR_ROUNDS)

    def saw(self, tokens: int, cost: float) -> None:
        """One round."""
        self.tokens = self.memory * self.tokens + tokens
        self.cost = self.memory * self.cost + cost
        self.rounds = self.memory * self.rounds + 1.0


@dataclass
class Pace:
    """What one sequence's rounds have shown, and until which round the network rests.

    `is_trial` says that it ran, or will, to see whether it pays again.
    """

    drafting: Speed = field(default_factory=Speed)
    idling: Speed = field(default_factory=Speed)
    rest_until: int = 0
    next_rest: int = _FIRST_REST
    is_trial: bool = False


class Pacer:
    """Decides for every sequence, and knows what is typical of them."""

    def __init__(self) -> None:
        self.typical = Speed(_LONG_MEMORY)
        self.round = 0
        self._rested = 0
        self._first_rest = _FIRST_REST_EXPECTED

    def expect(self, pace: Pace, speed: float | None = None) -> None:
        """A request begins; `speed` is what is expected of its drafts, where more is known than what is typical."""
        if speed is None:
            speed = self.typical.over(_PRIOR_SPEED) if self.typical.rounds >= _ENOUGH_ROUNDS else _PRIOR_SPEED
        if _HYSTERESIS * speed >= 1.0:
            return
        self._rested += 1
        pace.is_trial = True
        if self._rested % _TRY_EVERY:
            pace.rest_until = self._until(self._first_rest)
            pace.next_rest = min(2 * self._first_rest, PROBE_EVERY)

    def speed(self, pace: Pace | None) -> float:
        """Tokens that a sequence's rounds give in the time of a plain one; None is a sequence that does not draft."""
        if pace is None:
            return 1.0
        return max(1.0, self._drafting(pace), pace.idling.over(1.0))

    def _drafting(self, pace: Pace) -> float:
        return pace.drafting.over(self.typical.over(_PRIOR_SPEED))

    def rests(self, pace: Pace) -> bool:
        """Whether the network rests in this sequence's next round."""
        return self.round < pace.rest_until

    def saw_draft(self, pace: Pace, tokens: int, cost: float, expected: float | None = None) -> None:
        """A round in which the network ran; `expected` as in `expect`."""
        pace.drafting.saw(tokens, cost)
        self.typical.saw(tokens, cost)
        drafting = self._drafting(pace) if expected is None else pace.drafting.over(expected)
        pace.is_trial = pace.idling.over(1.0) > drafting * _HYSTERESIS
        if not pace.is_trial:
            pace.next_rest, self._first_rest = _FIRST_REST, _FIRST_REST_EXPECTED
            return
        self._first_rest = min(2 * self._first_rest, PROBE_EVERY)
        pace.rest_until = self._until(pace.next_rest)
        pace.next_rest = min(2 * pace.next_rest, PROBE_EVERY)

    def saw_idle(self, pace: Pace, tokens: int, cost: float) -> None:
        """A round in which it rested."""
        pace.idling.saw(tokens, cost)

    def _until(self, length: int) -> int:
        """The next round but one, at least, that is a multiple of the length."""
        return ((self.round + 1) // length + 1) * length
