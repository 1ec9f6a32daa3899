"""Which dialect a drafter's checkpoint is in."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from paceline.checkpoints import eagle3_config, heads, specblock, z_lab_config
from paceline.checkpoints.files import few
from paceline.checkpoints.speculators import read_plain_config
from paceline.errors import CheckpointError


class Dialect(Enum):
    """By what a checkpoint's `architectures` names; the speculators dialect is read as one of these."""

    Z_LAB = z_lab_config.ARCHITECTURE
    SPECBLOCK = specblock.ARCHITECTURE
    EAGLE3 = eagle3_config.ARCHITECTURE
    HEADS = heads.ARCHITECTURE
    CAUSAL_LM = "ForCausalLM"
    """A whole language model: how the names of their architectures end."""


def dialect_of(path: Path) -> Dialect:
    """The dialect of a checkpoint folder.

    Raises:
        CheckpointError: it is in none that is known.
    """
    came = read_plain_config(path).get("architectures")
    for dialect in Dialect:
        if came == [dialect.value]:
            return dialect
    name = str(came[0]) if isinstance(came, list) and len(came) == 1 else ""
    if name.endswith(Dialect.CAUSAL_LM.value) and "eagle" not in name.lower():
        return Dialect.CAUSAL_LM
    known = few([dialect.value for dialect in Dialect])
    raise CheckpointError(f"{path} holds the architectures {came}, but a drafter has one of {known}.")
