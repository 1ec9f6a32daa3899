"""Policies by name, as flags and arguments give them: `fixed:16`, `blockpilot:FOLDER`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from paceline.checkpoints.policy import check_pair, load_policy
from paceline.errors import InputError
from paceline.policies.base import Policy
from paceline.policies.blockpilot import BlockPilotPolicy
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings

FORMS = "fixed:SIZE or blockpilot:FOLDER"


def named_policy(spec: str, tree_budget: int, pair: Callable[[], Mapping[str, str]]) -> Policy:
    """The policy that `spec` names, with this node budget (or room for a whole chain, if that is more).

    `pair` tells the digests of target and drafter; it is asked only by policies that were trained for a pair.

    Raises:
        InputError: no such policy, or a size outside its range.
        CheckpointError: a checkpoint that cannot be used, or was trained for another pair.
    """
    kind, _, argument = spec.partition(":")
    if kind == "fixed" and argument.isascii() and argument.isdigit():
        size = int(argument)
        GenerationSettings(block_size=size)  # refuses what no request may ask for
        return FixedPolicy(size, max(tree_budget, size - 1))
    if kind == "blockpilot" and argument:
        path = Path(argument).expanduser()
        head, about = load_policy(path)
        check_pair(about, pair(), path)
        return BlockPilotPolicy(head, tree_budget)
    raise InputError(f"policy is {spec!r}, but must be {FORMS}.")
