"""Which dialect a drafter's checkpoint is in."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from paceline.checkpoints import eagle3, specblock, z_lab_config
from paceline.checkpoints.files import few, read_config
from paceline.errors import CheckpointError


class Dialect(Enum):
    """By what a checkpoint's `architectures` names."""

    Z_LAB = z_lab_config.ARCHITECTURE
    SPECBLOCK = specblock.ARCHITECTURE
    EAGLE3 = eagle3.ARCHITECTURE


def dialect_of(path: Path) -> Dialect:
    """The dialect of a checkpoint folder.

    Raises:
        CheckpointError: it is in none that is known.
    """
    stored = read_config(path)
    if "speculators_model_type" in stored:
        raise CheckpointError(f"{path} is in the speculators dialect, which is not read; give a checkpoint in another.")
    came = stored.get("architectures")
    for dialect in Dialect:
        if came == [dialect.value]:
            return dialect
    known = few([dialect.value for dialect in Dialect])
    raise CheckpointError(f"{path} holds the architectures {came}, but a drafter has one of {known}.")
