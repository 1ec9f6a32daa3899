"""Block size and node budget together, from the prefill and from the request's own rounds.

What is known of a request is a posterior over its difficulty (`difficulty.py`). The prefill gives its prior, where a
predictor was trained (`paceline train policy --predict accepted`); every round sharpens it. It decides three things:

    block size   expected tokens over draft(b) + verify + other is highest; with a chance h of a drafted token to be
                 kept, a block of b brings 1 + h + h^2 + ... + h^(b - 1) (`block_skill.py`)
    nodes        the chances of the nodes, with difficulty in them, against what they cost (`cost_aware.py`)
    whether      the network rests where rounds without it are faster, from the first round on if need be
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.models.policy_head import PolicyHead
from paceline.policies.base import DraftView, Plan, PromptView, SequenceView
from paceline.policies.block_skill import BlockSkill
from paceline.policies.calibration import Outcome
from paceline.policies.cost_aware import IDLE, CostAwarePolicy
from paceline.policies.costs import Costs
from paceline.policies.difficulty import Difficulty
from paceline.policies.pace import Pace

_PRIOR_REQUESTS = 4
_WITHIN = 0.5
"""How far the passages of one answer lie from the whole: what is predicted is the whole, what is drafted a passage."""


@dataclass(frozen=True)
class Predictor:
    """A network that predicts, for each block size, the logarithm of the drafted tokens that a round keeps; with what
    it predicts on average, and how far the truth lies from it (a standard deviation)."""

    head: PolicyHead
    typical: tuple[float, ...]
    spread: tuple[float, ...]

    def __call__(self, prompt: PromptView) -> tuple[float, dict[int, float]]:
        """How much easier a prompt is than those of the training, and what each size brings beyond that; logarithms."""
        found = np.array(self.head.predict(prompt.logits, prompt.features, prompt.hidden)) - self.typical
        ease = float(found.mean())
        return ease, dict(zip(self.head.config.block_sizes, (found - ease).tolist(), strict=True))

    @property
    def deviation(self) -> float:
        """Of a passage of an answer from what is predicted."""
        return math.hypot(float(np.mean(self.spread)), _WITHIN)


@dataclass
class JointPace(Pace):
    """What is known of one request: its difficulty, which sizes suit it better than others (in logarithms), and how
    fast the planned round is expected to be."""

    difficulty: Difficulty = field(default_factory=Difficulty)
    suits: Mapping[int, float] = field(default_factory=dict)
    expected: float | None = None


class JointPolicy(CostAwarePolicy):
    """A cost-aware budget whose chances and block size follow the request.

    Block sizes are the predictor's, else those whose drafts were measured. Without a predictor every request begins as
    a typical one. The sequences of a batch share a pass of the network, and so the size: that of the first one.
    """

    def __init__(self, costs: Costs, block_size: int, max_budget: int, predictor: Predictor | None = None):
        super().__init__(costs, block_size, max_budget, calibrate=True)
        self.predictor = predictor
        self.needs_hidden = predictor is not None and predictor.head.config.inputs == "last_hidden"
        sizes = predictor.head.config.block_sizes if predictor is not None else costs.draft.sizes
        self.skill = BlockSkill(sorted({*sizes, block_size}))
        self._rows = 1.0 + min(block_size, max_budget)
        self._usual_ease, self._begun = 0.0, 0
        self._size_of_round = -1, block_size

    def begin(self, prompt: PromptView) -> JointPace:
        pace = JointPace()
        if self.predictor is not None:
            ease, pace.suits = self.predictor(prompt)
            # what is served may be harder than what was trained on; the others of it are what this one is judged by
            pace.difficulty = Difficulty(self._usual_ease - ease, self.predictor.deviation)
            self._begun += 1
            self._usual_ease += (ease - self._usual_ease) / (_PRIOR_REQUESTS + self._begun)
        self.pacer.expect(pace, max(self._speeds(pace).values()))
        return pace

    def choose(self, sequence: SequenceView) -> Plan:
        plan = super().choose(sequence)
        if sequence.settings.block_size is not None or plan.block_size == IDLE:
            return plan
        pace: JointPace = sequence.state
        speeds = self._speeds(pace)
        if self._size_of_round[0] != self.pacer.round:
            self._size_of_round = self.pacer.round, max(speeds, key=lambda size: speeds[size])
        size = self._size_of_round[1]
        pace.expected = speeds[size]
        return Plan(size, plan.tree_budget)

    def _speeds(self, pace: JointPace) -> dict[int, float]:
        """Tokens in the time of a plain round, for each size, at the rows that rounds usually have."""
        plain = self.costs.verify_s(1, 0) + self.costs.other
        rest = self.costs.verify_s(self._rows, 0) + self.costs.other
        hard = pace.difficulty.mean
        return {
            size: plain * self.skill.tokens(size, pace.suits.get(size, 0.0) - hard) / (self.costs.draft_s(size) + rest)
            for size in self.skill.sizes
        }

    def _learn_one(self, draft: DraftView, path: Sequence[int], cost: float) -> None:
        pace: JointPace = draft.sequence.state
        size, steps = draft.plan.block_size, self._steps(draft)
        self._rows += 0.1 * (1 + draft.tree.num_nodes - self._rows)
        seen = steps.taken(path)
        known = pace.suits.get(size, 0.0) - pace.difficulty.mean
        self.skill.learn(size, len(path), not all(one.hit for one in seen), known)
        corrected = self.calibration.corrected(steps).taken(path)
        # the calibration is of typical requests: what this one's difficulty explains is not its to learn
        chances = pace.difficulty.chances([one.chance for one in seen])
        self.calibration.learn([Outcome(one.depth, chance, one.hit) for one, chance in zip(seen, chances, strict=True)])
        pace.difficulty.saw(corrected)
        self.pacer.saw_draft(pace, 1 + len(path), cost, pace.expected)

    def _chances(self, draft: DraftView) -> list[float]:
        if draft.plan.block_size == IDLE:
            return super()._chances(draft)
        pace: JointPace = draft.sequence.state
        return pace.difficulty.along_paths(self.calibration.corrected(self._steps(draft)))

    def describe(self) -> dict[str, int | float | str]:
        sizes = ", ".join(map(str, self.skill.sizes))
        begins = "from the prefill" if self.predictor is not None else "as a typical one"
        return {"policy": "joint", "block_sizes": sizes, "max_tree_budget": self.max_budget, "begins": begins}
