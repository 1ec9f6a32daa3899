"""The node budget of every round, from what the nodes are likely to bring and what they cost (METHODS section 3 (a)).

Nodes come likeliest first, so that the best tree of n nodes is the first n of them. With q(u) the chance that node u
is accepted, a round over b trees of n nodes brings b + sum of their q(u) tokens and takes
T_draft + T_verify(b (1 + n)) + T_other seconds; n is where tokens over seconds are highest (CaDDTree, arXiv 2606.01813;
BASTION, arXiv 2605.29727). A pass pads its trees to the largest, so that its trees share one n.

Where rounds without a pass of the draft network give more tokens per second, it rests, and is tried again now and
then: after 2, 4, 8 ... rounds, at most PROBE_EVERY (after 16 at first, where the other requests say so). Meanwhile the
drafter proposes what it can without the network, such as prompt lookup's copies in a mixture, and as many of those
nodes are verified as pay; else rounds are plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from paceline.policies.base import DraftView, Plan, Policy, PromptView, RoundView, SequenceView
from paceline.policies.calibration import Calibration, Steps
from paceline.policies.costs import Costs, LiveCosts
from paceline.types import GenerationSettings

IDLE = 1
"""The block size at which a draft network rests."""
PROBE_EVERY = 64
_FIRST_PAUSE, _UNLIKELY_PAUSE = 2, 16
_MEMORY, _LONG_MEMORY = 0.85, 0.98
_PRIOR_TOKENS, _PRIOR_ROUNDS = 1.5, 2.0
_ENOUGH_ROUNDS = 8.0
"""Before so many rounds, a request begins with a draft whatever the others have shown."""
_HYSTERESIS = 1.02
"""A change between drafting and not must promise this much."""


@dataclass
class Pace:
    """What one sequence's rounds have shown.

    `tokens` and `rounds` are fading sums over the rounds in which the network drafted, `idle_tokens` and `idle_s` over
    the others; `pause` counts the rounds left without it.
    """

    tokens: float = 0.0
    rounds: float = 0.0
    pause: int = 0
    next_pause: int = _FIRST_PAUSE
    memory: float = _MEMORY
    idle_tokens: float = 0.0
    idle_s: float = 0.0

    def expected(self, prior: float) -> float:
        """Tokens of a round with a draft."""
        return (self.tokens + _PRIOR_ROUNDS * prior) / (self.rounds + _PRIOR_ROUNDS)

    def idle_rate(self, plain_s: float) -> float:
        """Tokens/s while the network rests; of a plain round, which takes so long, before anything was seen."""
        return (self.idle_tokens + _PRIOR_ROUNDS) / (self.idle_s + _PRIOR_ROUNDS * plain_s)

    def saw_idle(self, tokens: int, seconds: float) -> None:
        """A round without the network."""
        self.idle_tokens = self.memory * self.idle_tokens + tokens
        self.idle_s = self.memory * self.idle_s + seconds

    def saw(self, tokens: int) -> None:
        """A round with a draft."""
        self.tokens = self.memory * self.tokens + tokens
        self.rounds = self.memory * self.rounds + 1.0


class CostAwarePolicy(Policy):
    """A fixed block size, and as many nodes as pay; none where none do. A request's own sizes bound it.

    The costs and the calibration are shared by all requests and follow the rounds; what a request's own rounds have
    shown is its `Pace`.
    """

    needs_times = True

    def __init__(self, costs: Costs, block_size: int, max_budget: int, calibrate: bool = True):
        self.costs = LiveCosts(costs)
        self.block_size, self.max_budget = block_size, max_budget
        self.calibrate, self.calibration = calibrate, Calibration()
        self.typical = Pace(memory=_LONG_MEMORY)
        """Of all requests: what to expect of one that has shown nothing."""
        self._typical_round_s = 0.0

    def begin(self, prompt: PromptView) -> Pace:
        pace = Pace()
        if self.typical.rounds >= _ENOUGH_ROUNDS:
            self._expect(pace, self.typical.expected(_PRIOR_TOKENS) / self._typical_round_s)
        return pace

    def choose(self, sequence: SequenceView) -> Plan:
        pace: Pace = sequence.state
        if pace.pause > 0:
            pace.pause -= 1
            return Plan(IDLE, self.max_tree_budget(sequence.settings))
        return Plan(self._block_size(sequence.settings), self.max_tree_budget(sequence.settings))

    def limit(self, drafts: Sequence[DraftView]) -> list[int]:
        widest = max(draft.tree.num_nodes for draft in drafts)
        if not widest:
            return [0] * len(drafts)
        gains = np.zeros(widest)
        for draft in drafts:
            gains[: draft.tree.num_nodes] += self._chances(draft)
        tokens = len(drafts) + np.concatenate([[0.0], np.cumsum(gains)])
        context = max(draft.num_tokens for draft in drafts)
        rows = len(drafts) * np.arange(1.0, len(tokens) + 1.0)
        seconds = self._draft_s(_largest_block(drafts)) + self.costs.verify_s(rows, context) + self.costs.other
        best = int((tokens / seconds).argmax())
        count = next((n for n in (best, best // 2, min(2 * best, widest)) if not self._knows(len(drafts), n)), best)
        return [min(count, draft.tree.num_nodes) for draft in drafts]

    def _knows(self, batch: int, nodes: int) -> bool:
        """Whether it is known what trees of so many nodes cost; where not, trying them once will tell."""
        return self.costs.knows(batch * (1 + nodes))

    def learn(self, outcome: RoundView) -> None:
        drafts, batch = outcome.drafts, len(outcome.drafts)
        rows = batch * (1 + max((draft.tree.num_nodes for draft in drafts), default=0))
        context = max((draft.num_tokens for draft in drafts), default=0)
        drafted = _largest_block(drafts)
        seconds = outcome.draft_s if drafted > IDLE else 0.0
        self.costs.learn(drafted, rows, context, seconds, outcome.verify_s, outcome.other_s)
        for draft, path in zip(drafts, outcome.paths, strict=True):
            if draft.sequence.state is None or not draft.plan.tree_budget:
                continue
            if draft.plan.block_size > IDLE:
                self._learn_one(draft, path, batch)
            else:
                draft.sequence.state.saw_idle(1 + len(path), self._round_s(draft, batch))

    def _learn_one(self, draft: DraftView, path: Sequence[int], batch: int) -> None:
        """What a sequence's draft shows, and whether it should go on drafting."""
        pace: Pace = draft.sequence.state
        if self.calibrate:
            self.calibration.learn(Steps.of(draft.tree), path)
        pace.saw(1 + len(path))
        self.typical.saw(1 + len(path))
        self._typical_round_s = self._round_s(draft, batch)
        tokens = pace.expected(self.typical.expected(_PRIOR_TOKENS))
        self._settle(pace, tokens / self._typical_round_s, batch, draft.num_tokens)

    def _round_s(self, draft: DraftView, batch: int) -> float:
        """Seconds of a round that drafts as this one did."""
        verify = self.costs.verify_s(batch * (1 + draft.tree.num_nodes), draft.num_tokens)
        return self._draft_s(draft.plan.block_size) + verify + self.costs.other

    def _draft_s(self, block_size: int) -> float:
        return self.costs.draft_s(block_size) if block_size > IDLE else 0.0

    def _expect(self, pace: Pace, rate: float) -> None:
        """Begin without the network where so many tokens/s are less than plain rounds give."""
        if self._idle_rate(pace, 1, 0) > rate * _HYSTERESIS:
            pace.pause, pace.next_pause = _UNLIKELY_PAUSE, 2 * _UNLIKELY_PAUSE

    def _idle_rate(self, pace: Pace, batch: int, context: int) -> float:
        return pace.idle_rate(self.costs.verify_s(batch, context) + self.costs.other)

    def _settle(self, pace: Pace, rate: float, batch: int, context: int) -> None:
        """Let the network rest for a while where rounds without it give more tokens/s than `rate`."""
        if self._idle_rate(pace, batch, context) > rate * _HYSTERESIS:
            pace.pause, pace.next_pause = pace.next_pause, min(2 * pace.next_pause, PROBE_EVERY)
        else:
            pace.next_pause = _FIRST_PAUSE

    def _chances(self, draft: DraftView) -> Float64[np.ndarray, " n"]:
        """The chance of each node to be accepted."""
        if draft.plan.block_size == IDLE:  # what needs no network knows itself how far it can be trusted
            return Steps.of(draft.tree).along_paths()
        return self.calibration.corrected(Steps.of(draft.tree)).along_paths()

    def _block_size(self, settings: GenerationSettings) -> int:
        return settings.block_size or self.block_size

    def max_tree_budget(self, settings: GenerationSettings) -> int:
        return settings.tree_budget or self.max_budget

    def describe(self) -> dict[str, int | float | str]:
        calibrated = "calibrated" if self.calibrate else "as the drafter says"
        return {
            "policy": "cost_aware",
            "block_size": self.block_size,
            "max_tree_budget": self.max_budget,
            "chances": calibrated,
        }


def _largest_block(drafts: Sequence[DraftView]) -> int:
    """Of those that drafted; 0 where none did."""
    return max((draft.plan.block_size for draft in drafts if draft.plan.tree_budget), default=0)
