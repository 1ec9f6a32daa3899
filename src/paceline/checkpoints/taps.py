"""Which of a target's layers drafters read, as published ones name them or where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.checkpoints.config_values import check_kinds


def default_taps(num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs are the features: a low, a middle and a high one."""
    return (1, num_layers // 2 - 1, num_layers - 4)


def outputs_of(inputs: Any, path: Path) -> tuple[int, ...]:
    """The layers whose outputs are the inputs of others, by whose numbers vLLM names them.

    Raises:
        CheckpointError: they are no list of whole numbers.
    """
    check_kinds({"target_layer_ids": inputs}, path)
    return tuple(layer - 1 for layer in inputs)


def inputs_of(outputs: Sequence[int]) -> list[int]:
    """The numbers by which vLLM names layers whose outputs are read."""
    return [layer + 1 for layer in outputs]
