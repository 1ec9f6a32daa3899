"""Policies by name, as flags and arguments give them, such as `fixed:16` or `joint:FOLDER`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints.files import expanded
from paceline.checkpoints.policy import SPREAD, TYPICAL, belongs_to, check_pair, load_policy
from paceline.errors import CheckpointError, InputError
from paceline.models.policy_head import PolicyHead
from paceline.policies.base import Policy
from paceline.policies.blockpilot import BlockPilotPolicy
from paceline.policies.cost_aware import CostAwarePolicy
from paceline.policies.costs import Costs
from paceline.policies.fixed import FixedPolicy
from paceline.policies.joint import JointPolicy, Predictor
from paceline.policies.spelling import BLOCKPILOT, CALIBRATED, COST_AWARE, JOINT, check_spelling
from paceline.types import PolicyOutputs

_SPREADS, _MOST_TYPICAL = (1e-3, 100.0), 100.0
"""Of logarithms of counts."""


@dataclass(frozen=True)
class Circumstances:
    """What policies are made for: the drafter's own block size and node budget, the budget that the user asked for
    (None: no other), the largest one where it changes by round, and, asked for by those policies alone that need them,
    the digests of target and drafter and the costs of this machine. `shipped` are the networks that come with the
    package, by what they predict; they serve one pair."""

    block_size: int
    own_budget: int
    asked_budget: int | None
    max_budget: int
    pair: Callable[[], Mapping[str, str]]
    costs: Callable[[], Costs]
    shipped: Mapping[PolicyOutputs, Path] = field(default_factory=dict)

    def budget(self, largest_block: int) -> int:
        """Nodes of a round: what was asked for, else the drafter's own, with room for a whole chain."""
        return self.asked_budget or max(self.own_budget, largest_block - 1)


def named_policy(spec: str, given: Circumstances) -> Policy:
    """The policy that `spec` names. A budget that was asked for is kept; else there is room for a whole chain.

    Raises:
        InputError: no such policy, or a size outside its range.
        CheckpointError: a checkpoint that cannot be used, or was trained for another pair.
    """
    check_spelling(spec)
    kind, _, argument = spec.partition(":")
    if kind == BLOCKPILOT:
        found = _trained(argument, "best_size", given)
        if found is None:
            raise InputError(
                f"policy {spec!r} names no folder, but none comes with this drafter; "
                "train one with `paceline train policy` and name its folder."
            )
        return BlockPilotPolicy(found.head, given.budget(found.head.config.block_sizes[-1]))
    if kind == COST_AWARE:
        return CostAwarePolicy(given.costs(), given.block_size, given.max_budget, argument == CALIBRATED)
    if kind == JOINT:
        found = _trained(argument, "accepted", given)
        predictor = _predictor(found) if found is not None else None
        return JointPolicy(given.costs(), given.block_size, given.max_budget, predictor)
    size, *nodes = map(int, argument.split(":"))
    if nodes and given.asked_budget is not None:
        raise InputError(
            f"policy {spec!r} and tree_budget {given.asked_budget} both say how many nodes; leave one of them out."
        )
    return FixedPolicy(size, nodes[0] if nodes else given.budget(size))


@dataclass(frozen=True)
class _Trained:
    path: Path
    head: PolicyHead
    about: dict[str, Any]


def _trained(argument: str, predicts: PolicyOutputs, given: Circumstances) -> _Trained | None:
    """The network of the folder that was named, else the one that comes with the package for this very pair, if any."""
    path = expanded(argument) if argument else given.shipped.get(predicts)
    if path is None:
        return None
    head, about = load_policy(path)
    if not argument and not belongs_to(about, given.pair()):
        return None
    if head.config.predicts != predicts:
        use = JOINT if predicts == "best_size" else BLOCKPILOT
        raise InputError(f"{path} predicts {head.config.predicts}, but {predicts} is wanted here; use {use}:{path}.")
    check_pair(about, given.pair(), path)
    return _Trained(path, head, about)


def _predictor(found: _Trained) -> Predictor:
    count = len(found.head.config.block_sizes)
    typical, spread = (_column(found.about, name, count, found.path) for name in (TYPICAL, SPREAD))
    if min(spread) < _SPREADS[0] or max(spread) > _SPREADS[1] or max(map(abs, typical)) > _MOST_TYPICAL:
        raise CheckpointError(f"{found.path} has a {SPREAD} or {TYPICAL} that cannot be; train it again.")
    return Predictor(found.head, typical, spread)


def _column(about: Mapping[str, Any], name: str, count: int, path: Path) -> tuple[float, ...]:
    """One number for each block size."""
    found = about.get(name)
    numbers = [value for value in found if isinstance(value, float)] if isinstance(found, list) else []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise CheckpointError(f"{path} has no {name} for each of its {count} block sizes; train it again.")
    return tuple(numbers)
