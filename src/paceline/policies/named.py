"""Policies by name, as flags and arguments give them: `fixed:16`, `fixed:16:64`, `blockpilot:FOLDER`, `cost_aware`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.checkpoints.files import expanded
from paceline.checkpoints.policy import check_pair, load_policy
from paceline.errors import InputError
from paceline.policies.base import Policy
from paceline.policies.blockpilot import BlockPilotPolicy
from paceline.policies.cost_aware import CostAwarePolicy
from paceline.policies.costs import Costs
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings

FORMS = "fixed:SIZE, fixed:SIZE:NODES, blockpilot:FOLDER or cost_aware"
COST_AWARE = "cost_aware"


@dataclass(frozen=True)
class Circumstances:
    """What policies are made for: the drafter's own block size and node budget, the budget that the user asked for
    (None: no other), the largest one where it changes by round, and, asked for by those policies alone that need them,
    the digests of target and drafter and the costs of this machine."""

    block_size: int
    own_budget: int
    asked_budget: int | None
    max_budget: int
    pair: Callable[[], Mapping[str, str]]
    costs: Callable[[], Costs]

    def budget(self, largest_block: int) -> int:
        """Nodes of a round: what was asked for, else the drafter's own, with room for a whole chain."""
        return self.asked_budget or max(self.own_budget, largest_block - 1)


def named_policy(spec: str, given: Circumstances) -> Policy:
    """The policy that `spec` names. A budget that was asked for is kept; else there is room for a whole chain.

    Raises:
        InputError: no such policy, or a size outside its range.
        CheckpointError: a checkpoint that cannot be used, or was trained for another pair.
    """
    kind, _, argument = spec.partition(":")
    if kind == "fixed" and re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9})?", argument):
        size, *nodes = map(int, argument.split(":"))
        budget = nodes[0] if nodes else given.budget(size)
        GenerationSettings(block_size=size, tree_budget=budget)  # refuses what no request may ask for
        return FixedPolicy(size, budget)
    if kind == "blockpilot" and argument:
        path = expanded(argument)
        head, about = load_policy(path)
        check_pair(about, given.pair(), path)
        return BlockPilotPolicy(head, given.budget(head.config.block_sizes[-1]))
    if spec == COST_AWARE:
        return CostAwarePolicy(given.costs(), given.block_size, given.max_budget)
    raise InputError(f"policy is {spec!r}, but must be {FORMS}.")
