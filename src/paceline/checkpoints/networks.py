"""The draft network of a checkpoint in any dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.checkpoints.dialect import Dialect
from paceline.checkpoints.eagle3 import load_eagle3
from paceline.checkpoints.heads import load_heads
from paceline.checkpoints.specblock import load_specblock
from paceline.checkpoints.z_lab import load_dflash


def load_network(dialect: Dialect, path: Path, num_target_layers: int) -> Any:
    """The network of a checkpoint folder, on the CPU, in evaluation mode; `num_target_layers` tells the tapped layers
    where the checkpoint does not.

    Raises:
        CheckpointError: a file is missing or damaged, or keys or weights are missing, unknown or misshaped.
        UnsupportedModelError: the network needs something that is not implemented, named in the message.
    """
    match dialect:
        case Dialect.Z_LAB:
            return load_dflash(path, num_target_layers=num_target_layers)
        case Dialect.EAGLE3:
            return load_eagle3(path, num_target_layers)
        case Dialect.SPECBLOCK:
            return load_specblock(path, num_target_layers)
        case Dialect.HEADS:
            return load_heads(path)
        case Dialect.CAUSAL_LM:
            raise AssertionError("a language model is no draft network")
