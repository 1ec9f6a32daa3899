"""The node budget of every round, from what the nodes are likely to bring and what they cost (METHODS section 3 (a)).

Nodes come likeliest first, so that the best tree of n nodes is the first n of them. With q(u) the chance that node u
is accepted, a round over b trees of n nodes brings b + sum of their q(u) tokens and takes
T_draft + T_verify(b (1 + n)) + T_other seconds; n is where tokens over seconds are highest (CaDDTree, arXiv 2606.01813;
BASTION, arXiv 2605.29727). A pass pads its trees to the largest, so that its trees share one n.

Where rounds without a draft give more tokens per second, drafting stops, and is tried again now and then: after
2, 4, 8 ... rounds, at most PROBE_EVERY.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from paceline.policies.base import DraftView, Plan, Policy, PromptView, RoundView, SequenceView
from paceline.policies.calibration import Calibration
from paceline.policies.costs import Costs, LiveCosts
from paceline.types import GenerationSettings

PROBE_EVERY = 64
_FIRST_PAUSE = 2
_MEMORY = 0.85
_PRIOR_ROUNDS = 2.0
_HYSTERESIS = 1.02
"""A change between drafting and not must promise this much."""


@dataclass
class Pace:
    """What one sequence's rounds have shown.

    `tokens` and `rounds` are fading sums over the rounds with a draft; `pause` counts the rounds left without one.
    """

    tokens: float = 0.0
    rounds: float = 0.0
    pause: int = 0
    next_pause: int = _FIRST_PAUSE

    def expected(self, prior: float) -> float:
        """Tokens of a round with a draft."""
        return (self.tokens + _PRIOR_ROUNDS * prior) / (self.rounds + _PRIOR_ROUNDS)

    def saw(self, tokens: int) -> None:
        """A round with a draft."""
        self.tokens = _MEMORY * self.tokens + tokens
        self.rounds = _MEMORY * self.rounds + 1.0


class CostAwarePolicy(Policy):
    """A fixed block size, and as many nodes as pay; none where none do. A request's own sizes bound it.

    The costs and the calibration are shared by all requests and follow the rounds; what a request's own rounds have
    shown is its `Pace`.
    """

    needs_times = True

    def __init__(self, costs: Costs, block_size: int, max_budget: int, calibrate: bool = True):
        self.costs = LiveCosts(costs)
        self.block_size, self.max_budget = block_size, max_budget
        self.calibration = Calibration() if calibrate else None
        self.typical = Pace()
        """Of all requests: what to expect of one that has shown nothing."""

    def begin(self, prompt: PromptView) -> Pace:
        return Pace()

    def choose(self, sequence: SequenceView) -> Plan:
        pace: Pace = sequence.state
        if pace.pause > 0:
            pace.pause -= 1
            return Plan(self._block_size(sequence.settings), 0)
        return Plan(self._block_size(sequence.settings), self.max_tree_budget(sequence.settings))

    def limit(self, drafts: Sequence[DraftView]) -> list[int]:
        if not any(draft.tree.num_nodes for draft in drafts):
            return [0] * len(drafts)
        gains = self._gains(drafts)
        tokens = len(drafts) + np.concatenate([[0.0], np.cumsum(gains)])
        context = max(draft.num_tokens for draft in drafts)
        drafted = max(draft.plan.block_size for draft in drafts if draft.plan.tree_budget)
        fixed = self.costs.draft_s(drafted) + self.costs.other
        seconds = [fixed + self.costs.verify_s(len(drafts) * (1 + n), context) for n in range(len(tokens))]
        best = int((tokens / np.array(seconds)).argmax())
        return [min(best, draft.tree.num_nodes) for draft in drafts]

    def learn(self, outcome: RoundView) -> None:
        drafted = [draft.plan.block_size for draft in outcome.drafts if draft.plan.tree_budget]
        rows = len(outcome.drafts) * (1 + max((draft.tree.num_nodes for draft in outcome.drafts), default=0))
        context = max((draft.num_tokens for draft in outcome.drafts), default=0)
        self.costs.learn(
            max(drafted, default=0), rows, context, outcome.draft_s if drafted else 0.0, outcome.verify_s,
            outcome.other_s,
        )  # fmt: skip
        for draft, path in zip(outcome.drafts, outcome.paths, strict=True):
            if draft.plan.tree_budget and draft.sequence.state is not None:
                self._learn_one(draft, path, len(outcome.drafts))

    def _learn_one(self, draft: DraftView, path: Sequence[int], batch: int) -> None:
        """Whether this sequence should go on drafting."""
        pace: Pace = draft.sequence.state
        if self.calibration is not None and draft.tree.num_nodes:
            tree = draft.tree
            self.calibration.learn(tree.log_probs.tolist(), tree.parents.tolist(), tree.depths().tolist(), path)
        pace.saw(1 + len(path))
        self.typical.saw(1 + len(path))
        rate, plain = self._rates(pace, draft, batch)
        if plain > rate * _HYSTERESIS:
            pace.pause, pace.next_pause = pace.next_pause, min(2 * pace.next_pause, PROBE_EVERY)
        else:
            pace.next_pause = _FIRST_PAUSE

    def _rates(self, pace: Pace, draft: DraftView, batch: int) -> tuple[float, float]:
        """Tokens/s of this sequence with a draft, as its last rounds went, and without."""
        context, other = draft.num_tokens, self.costs.other
        drafting = self.costs.draft_s(draft.plan.block_size)
        verify = self.costs.verify_s(batch * (1 + draft.tree.num_nodes), context)
        prior = self.typical.expected(1.5)
        with_draft = pace.expected(prior) / (drafting + verify + other)
        return with_draft, 1.0 / (self.costs.verify_s(batch, context) + other)

    def _gains(self, drafts: Sequence[DraftView]) -> Float64[np.ndarray, " n"]:
        """Expected tokens of the n-th node of every tree together."""
        widest = max(draft.tree.num_nodes for draft in drafts)
        gains = np.zeros(widest)
        for draft in drafts:
            tree = draft.tree
            chances = tree.log_probs.cpu().double().exp().numpy()
            if self.calibration is not None:
                chances = self.calibration.path_probabilities(
                    tree.log_probs.tolist(), tree.parents.tolist(), tree.depths().tolist()
                )
            gains[: len(chances)] += chances
        return gains

    def _block_size(self, settings: GenerationSettings) -> int:
        return settings.block_size or self.block_size

    def max_tree_budget(self, settings: GenerationSettings) -> int:
        return settings.tree_budget or self.max_budget

    def describe(self) -> dict[str, int | float | str]:
        calibrated = "calibrated" if self.calibration is not None else "as the drafter says"
        return {
            "policy": "cost_aware",
            "block_size": self.block_size,
            "max_tree_budget": self.max_budget,
            "chances": calibrated,
        }
