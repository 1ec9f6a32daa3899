"""Block size and node budget together, from the prefill and from the request's own rounds.

What is known of a request is a posterior over its difficulty (`difficulty.py`). The prefill gives its prior, where a
predictor was trained (`paceline train policy --predict accepted`); every round sharpens it. It decides three things:

    block size   (1 + kept(b)) / (draft(b) + verify + other) is highest; kept(b) is what rounds of this size have kept
                 of their drafts over all requests, times the expected exp(-difficulty)
    nodes        the chances of the nodes, with difficulty in them, against what they cost (`cost_aware.py`)
    whether      the network rests where rounds without it give more tokens/s, from the first round on if need be
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from paceline.models.policy_head import PolicyHead
from paceline.policies.base import DraftView, Plan, PromptView, SequenceView
from paceline.policies.calibration import Steps
from paceline.policies.cost_aware import IDLE, CostAwarePolicy, Pace
from paceline.policies.costs import Costs
from paceline.policies.difficulty import Difficulty

_PRIOR_KEPT = 1.0
"""Drafted tokens that a round is expected to keep before anything is known of the drafter."""
_PRIOR_ROUNDS = 4.0
_MEMORY = 0.998


@dataclass(frozen=True)
class Predictor:
    """A network that predicts, for each block size, the logarithm of the drafted tokens that a round keeps; with what
    it predicts on average, and how far the truth lies from it (a standard deviation)."""

    head: PolicyHead
    typical: tuple[float, ...]
    spread: tuple[float, ...]

    def __call__(self, prompt: PromptView) -> tuple[Difficulty, dict[int, float]]:
        """The difficulty of a prompt, and the logarithm of what each size brings beyond that."""
        found = np.array(self.head.predict(prompt.logits, prompt.features, prompt.hidden)) - self.typical
        ease = float(found.mean())
        sizes = self.head.config.block_sizes
        return Difficulty(-ease, float(np.mean(self.spread))), dict(zip(sizes, (found - ease).tolist(), strict=True))


@dataclass
class JointPace(Pace):
    """What is known of one request: its difficulty, and which sizes suit it better than others (in logarithms)."""

    difficulty: Difficulty = field(default_factory=Difficulty)
    suits: Mapping[int, float] = field(default_factory=dict)


@dataclass
class Skill:
    """What rounds of one block size have kept of their drafts, over rounds weighed by their requests' ease."""

    kept: float = 0.0
    rounds: float = 0.0

    def per_round(self, prior: float) -> float:
        """Drafted tokens that a round of a typical request keeps."""
        return (self.kept + _PRIOR_ROUNDS * prior) / (self.rounds + _PRIOR_ROUNDS)

    def saw(self, kept: int, ease: float) -> None:
        """One round."""
        self.kept = _MEMORY * self.kept + kept
        self.rounds = _MEMORY * self.rounds + ease


class JointPolicy(CostAwarePolicy):
    """A cost-aware budget whose chances and block size follow the request.

    Block sizes are the predictor's, else those whose drafts were measured; a size that was not tried is expected to
    keep what all together do. Without a predictor every request begins as a typical one.
    """

    def __init__(self, costs: Costs, block_size: int, max_budget: int, predictor: Predictor | None = None):
        super().__init__(costs, block_size, max_budget)
        self.predictor = predictor
        self.needs_hidden = predictor is not None and predictor.head.config.inputs == "last_hidden"
        sizes = predictor.head.config.block_sizes if predictor is not None else costs.draft.sizes
        self.skills = {size: Skill() for size in sorted({*sizes, block_size})}
        self.overall = Skill()
        self._rows = 1.0 + min(block_size, max_budget)

    def begin(self, prompt: PromptView) -> JointPace:
        pace = JointPace()
        if self.predictor is not None:
            pace.difficulty, pace.suits = self.predictor(prompt)
        self._expect(pace, max(self._rates(pace).values()))
        return pace

    def choose(self, sequence: SequenceView) -> Plan:
        plan = super().choose(sequence)
        if sequence.settings.block_size is not None or plan.block_size == IDLE:
            return plan
        pace: JointPace = sequence.state
        rates = self._rates(pace)
        return Plan(max(rates, key=lambda size: rates[size]), plan.tree_budget)

    def _rates(self, pace: JointPace) -> dict[int, float]:
        """Tokens/s of a round that drafts, for each size, at the rows that rounds usually have."""
        other = self.costs.verify_s(self._rows, 0) + self.costs.other
        ease = pace.difficulty.ease
        return {size: self._tokens(pace, ease, size) / (self.costs.draft_s(size) + other) for size in self.skills}

    def _tokens(self, pace: JointPace, ease: float, size: int) -> float:
        """Tokens of a round that drafts with this size."""
        kept = self.overall.per_round(_PRIOR_KEPT)
        if size in self.skills:
            kept = self.skills[size].per_round(kept)
        return 1.0 + kept * ease * math.exp(pace.suits.get(size, 0.0))

    def _learn_one(self, draft: DraftView, path: Sequence[int], batch: int) -> None:
        pace: JointPace = draft.sequence.state
        steps = Steps.of(draft.tree)
        size, ease = draft.plan.block_size, pace.difficulty.ease
        for skill in (self.overall, self.skills[size]) if size in self.skills else (self.overall,):
            skill.saw(len(path), ease)
        self._rows += 0.1 * (1 + draft.tree.num_nodes - self._rows)
        pace.difficulty.saw(self.calibration.corrected(steps).taken(path))
        self.calibration.learn(steps, path)
        tokens = self._tokens(pace, pace.difficulty.ease, size)
        self._settle(pace, tokens / self._round_s(draft, batch), batch, draft.num_tokens)

    def _chances(self, draft: DraftView) -> Float64[np.ndarray, " n"]:
        if draft.plan.block_size == IDLE:
            return super()._chances(draft)
        pace: JointPace = draft.sequence.state
        return pace.difficulty.along_paths(self.calibration.corrected(Steps.of(draft.tree)))

    def describe(self) -> dict[str, int | float | str]:
        sizes = ", ".join(map(str, self.skills))
        begins = "from the prefill" if self.predictor is not None else "as a typical one"
        return {"policy": "joint", "block_sizes": sizes, "max_tree_budget": self.max_budget, "begins": begins}
