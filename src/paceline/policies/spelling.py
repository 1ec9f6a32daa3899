"""How policies are named, by flags and arguments; checked without loading anything."""

from __future__ import annotations

import re

from paceline.errors import InputError
from paceline.types import GenerationSettings

FORMS = (
    "fixed:SIZE, fixed:SIZE:NODES, blockpilot, blockpilot:FOLDER, cost_aware, cost_aware:calibrated, joint or "
    "joint:FOLDER"
)
BLOCKPILOT, COST_AWARE, CALIBRATED, JOINT = "blockpilot", "cost_aware", "calibrated", "joint"


def check_spelling(spec: str) -> None:
    """Refuse a name that no policy has, before anything is loaded.

    Raises:
        InputError: no such policy, or a size outside its range.
    """
    kind, _, argument = spec.partition(":")
    sizes = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", argument)
    if kind == "fixed" and sizes:
        GenerationSettings(block_size=int(sizes[1]), tree_budget=int(sizes[2]) if sizes[2] else None)
        return
    known = {BLOCKPILOT: True, JOINT: True, COST_AWARE: argument in ("", CALIBRATED)}
    if not known.get(kind) or spec.endswith(":"):
        raise InputError(f"policy is {spec!r}, but must be {FORMS}.")
