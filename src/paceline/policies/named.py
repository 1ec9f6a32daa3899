"""Policies by name, as flags and arguments give them: `fixed:16`, `blockpilot:FOLDER`, `cost_aware`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoints.policy import check_pair, load_policy
from paceline.errors import InputError
from paceline.policies.base import Policy
from paceline.policies.blockpilot import BlockPilotPolicy
from paceline.policies.cost_aware import CostAwarePolicy
from paceline.policies.costs import Costs
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings

FORMS = "fixed:SIZE, blockpilot:FOLDER or cost_aware"
COST_AWARE = "cost_aware"


@dataclass(frozen=True)
class Circumstances:
    """What policies are made for: the drafter's own block size, the node budget where one is fixed and the largest
    where it is not, and, asked for by those policies alone that need them, the digests of target and drafter and the
    costs of this machine."""

    block_size: int
    tree_budget: int
    max_budget: int
    pair: Callable[[], Mapping[str, str]]
    costs: Callable[[], Costs]


def named_policy(spec: str, given: Circumstances) -> Policy:
    """The policy that `spec` names. A fixed budget leaves room for a whole chain.

    Raises:
        InputError: no such policy, or a size outside its range.
        CheckpointError: a checkpoint that cannot be used, or was trained for another pair.
    """
    kind, _, argument = spec.partition(":")
    if kind == "fixed" and argument.isascii() and argument.isdigit():
        size = int(argument)
        GenerationSettings(block_size=size)  # refuses what no request may ask for
        return FixedPolicy(size, max(given.tree_budget, size - 1))
    if kind == "blockpilot" and argument:
        path = Path(argument).expanduser()
        head, about = load_policy(path)
        check_pair(about, given.pair(), path)
        return BlockPilotPolicy(head, given.tree_budget)
    if spec == COST_AWARE:
        return CostAwarePolicy(given.costs(), given.block_size, given.max_budget)
    raise InputError(f"policy is {spec!r}, but must be {FORMS}.")
