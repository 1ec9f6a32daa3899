"""The node budget of every round, from what the nodes are likely to bring and what they cost (METHODS section 3 (a)).

Nodes come likeliest first, so that the best tree of n nodes is the first n of them. With q(u) the chance that node u
is accepted, a round over b trees of n nodes brings b + sum of their q(u) tokens and takes
T_draft + T_verify(b (1 + n)) + T_other seconds (CaDDTree, arXiv 2606.01813; BASTION, arXiv 2605.29727). A pass pads its
trees to the largest, so that its trees share one n.

Tokens over seconds of all rounds together are highest where each round's n is that of the largest

    tokens(n) - rate * seconds(n)

with the rate that is reached so (Dinkelbach's method for ratios), not where each round's own ratio is: a second is
worth as much in a round with a poor draft, and there are better rounds to spend it in. The rate is what the sequence's
rounds have shown, and that of plain rounds at least. Where all rounds are alike, both are the same.

Where rounds without a pass of the draft network are faster, it rests (`pace.py`). Meanwhile the drafter proposes what
it can without one, such as prompt lookup's copies, and as many of those nodes are verified as pay; else rounds are
plain ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from paceline.policies.base import DraftView, Plan, Policy, PromptView, RoundView, SequenceView
from paceline.policies.calibration import Calibration, Steps
from paceline.policies.costs import Costs, LiveCosts
from paceline.policies.pace import Pace, Pacer
from paceline.tree import likeliest_end
from paceline.types import GenerationSettings

IDLE = 1
"""The block size at which a draft network rests."""
_UNSEEN_ROUNDS = 2
"""Rounds that are taken to have ended before the end of the block, beside those seen."""
_TRIAL_LOSS = 0.1
"""Tokens a round that seeing what a size costs may lose."""


class CostAwarePolicy(Policy):
    """A fixed block size, and as many nodes as pay; none where none do. A request's own sizes bound it.

    The costs, the calibration and what is typical are shared by all requests and follow the rounds; what a request's
    own rounds have shown is its `Pace`. Without `calibrate` the drafter's chances are believed as they are.
    """

    needs_times = True
    may_extend = True

    def __init__(self, costs: Costs, block_size: int, max_budget: int, calibrate: bool = False):
        self.costs = LiveCosts(costs)
        self.block_size, self.max_budget = block_size, max_budget
        self.calibrate, self.calibration = calibrate, Calibration()
        self.pacer = Pacer()
        self._read: dict[int, Steps] = {}
        """Of the trees of this round, by the sequence's pace: what `limit` reads, `learn` need not read again."""

    def begin(self, prompt: PromptView) -> Pace:
        pace = Pace()
        self.pacer.expect(pace)
        return pace

    def choose(self, sequence: SequenceView) -> Plan:
        size = sequence.settings.block_size or self.block_size
        return Plan(IDLE if self.pacer.rests(sequence.state) else size, self.max_tree_budget(sequence.settings))

    def extends(self, drafts: Sequence[DraftView]) -> list[bool]:
        return [_ran(draft) and draft.tree.num_nodes > 0 and self._pays_past_the_end(draft) for draft in drafts]

    def _pays_past_the_end(self, draft: DraftView) -> bool:
        """Whether a second block is expected to bring more tokens than its seconds are worth: as many as blocks have
        brought in this sequence, if the first one is accepted to its end. How often that happened says whether the tree
        is worth looking at."""
        counts, depth = draft.sequence.statistics, draft.plan.block_size - 1
        if len(counts.accepted_by_position) < depth:
            return False
        gain = counts.accepted / counts.rounds
        round_s = self.costs.verify_s(1, draft.num_tokens) + self.costs.other
        price = self.pacer.speed(draft.sequence.state) / round_s * self.costs.draft_s(draft.plan.block_size)
        share = counts.accepted_by_position[depth - 1] / (counts.rounds + _UNSEEN_ROUNDS)
        if share * gain <= price:
            return False
        end = likeliest_end(draft.tree, depth)
        return end is not None and math.exp(end[1]) * gain > price

    def limit(self, drafts: Sequence[DraftView]) -> list[int]:
        self._read.clear()
        chances = [self._chances(draft) if draft.tree.num_nodes else [] for draft in drafts]
        gains = [sum(together) for together in zip_longest(*chances, fillvalue=0.0)]
        if not gains:
            return [0] * len(drafts)
        # a trial that verified nothing would show nothing
        least = int(any(_ran(draft) and draft.sequence.state.is_trial for draft in drafts))
        count = self._settle(len(drafts), self._worth(drafts, gains, least), least)
        return [min(count, draft.tree.num_nodes) for draft in drafts]

    def _worth(self, drafts: Sequence[DraftView], gains: Sequence[float], least: int) -> list[float]:
        """For each number of nodes, from 0 on: tokens beyond the roots', less what the seconds of it are worth; as far
        as any number can be of use."""
        batch, context = len(drafts), _context(drafts)
        speed = sum(self.pacer.speed(draft.sequence.state) for draft in drafts)
        rate = speed / (self.costs.verify_s(batch, context) + self.costs.other)
        brought, all_of_them, floor = 0.0, sum(gains), -math.inf
        found = []
        for count in range(len(gains) + 1):
            paid = rate * self.costs.verify_s(batch * (1 + count), context)
            found.append(brought - paid)
            floor = max(floor, found[-1] - _TRIAL_LOSS * batch)
            if all_of_them - paid < floor and count >= least:
                break
            brought += gains[count] if count < len(gains) else 0.0
        return found

    def _settle(self, batch: int, worth: Sequence[float], least: int) -> int:
        """The number of nodes that is worth most, `least` or more; or one around it of which it is not known what it
        costs, to see that, where it is not expected to lose much."""
        best = max(range(least, len(worth)), key=worth.__getitem__)
        floor = worth[best] - _TRIAL_LOSS * batch
        for count in (best, max(least, best // 2), min(max(1, 2 * best), len(worth) - 1)):
            if worth[count] >= floor and not self.costs.knows(batch * (1 + count)):
                return count
        return best

    def learn(self, outcome: RoundView) -> None:
        drafts, batch = outcome.drafts, len(outcome.drafts)
        rows = batch * (1 + max((draft.tree.num_nodes for draft in drafts), default=0))
        context = _context(drafts)
        is_extended = any(draft.is_extended for draft in drafts)
        has_drafted = any(_ran(draft) and draft.tree.num_nodes for draft in drafts) and not is_extended
        sizes = _block_sizes(drafts) if has_drafted else []
        self.costs.learn(sizes, rows, context, outcome.draft_s, outcome.verify_s, outcome.other_s)
        plain = self.costs.verify_s(batch, context) + self.costs.other
        network_s = self._network_s(drafts) * (1 + is_extended)
        cost = (network_s + self.costs.verify_s(rows, context) + self.costs.other) / plain
        for draft, path in zip(drafts, outcome.paths, strict=True):
            if not draft.plan.tree_budget:
                continue
            if _ran(draft):
                self._learn_one(draft, path, cost)
            else:
                self.pacer.saw_idle(draft.sequence.state, 1 + len(path), cost)
        self.pacer.round += 1
        self._read.clear()

    def _learn_one(self, draft: DraftView, path: Sequence[int], cost: float) -> None:
        """What a sequence's draft shows, and whether it should go on drafting; `cost` in plain rounds."""
        if self.calibrate:
            self.calibration.learn(self._steps(draft).taken(path))
        self.pacer.saw_draft(draft.sequence.state, 1 + len(path), cost)

    def _network_s(self, drafts: Sequence[DraftView]) -> float:
        """Seconds of the network: one pass for every block size."""
        return sum(self.costs.draft_s(size) for size in _block_sizes(drafts))

    def _steps(self, draft: DraftView) -> Steps:
        """The tree as the surrogate has it."""
        key = id(draft.sequence.state)
        if key not in self._read:
            self._read[key] = Steps.of(draft.tree)
        return self._read[key].first(draft.tree.num_nodes)

    def _chances(self, draft: DraftView) -> list[float]:
        """The chance of each node to be accepted."""
        steps = self._steps(draft)
        # what needs no network knows itself how far it can be trusted
        return (self.calibration.corrected(steps) if _ran(draft) else steps).along_paths()

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


def _ran(draft: DraftView) -> bool:
    """Whether the network was asked for this sequence."""
    return draft.plan.tree_budget > 0 and draft.plan.block_size > IDLE


def _block_sizes(drafts: Sequence[DraftView]) -> list[int]:
    return sorted({draft.plan.block_size for draft in drafts if _ran(draft)})


def _context(drafts: Sequence[DraftView]) -> int:
    return max((draft.num_tokens for draft in drafts), default=0)
