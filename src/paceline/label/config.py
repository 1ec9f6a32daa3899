"""What a labelling run is told, apart from where its prompts and results lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InputError
from paceline.types import MAX_NODES, GenerationSettings

MAX_REACH = 64


@dataclass(frozen=True)
class LabelConfig:
    """What decides a label: how the model is loaded, which block sizes are tried, and how it answers.

    `load` are the arguments of `paceline.load`. `block_sizes` empty means those within `reach` of the drafter's own
    (B - k .. B + k). Sampled answers use the same seed for every prompt and block size.

    Raises:
        InputError: a value outside its range.
    """

    load: Mapping[str, Any] = field(default_factory=dict)
    block_sizes: tuple[int, ...] = ()
    reach: int = 2
    max_tokens: int = GenerationSettings.max_tokens
    temperature: float = GenerationSettings.temperature
    seed: int = GenerationSettings.seed

    def __post_init__(self) -> None:
        GenerationSettings(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)
        for size in self.block_sizes:
            if not 2 <= size <= MAX_NODES:
                raise InputError(f"block size {size} came, but each must be within 2 to {MAX_NODES}, anchor included.")
        if len(self.block_sizes) == 1:
            raise InputError(f"one block size came ({self.block_sizes[0]}), but labels compare several; name more.")
        if len(set(self.block_sizes)) < len(self.block_sizes):
            raise InputError("a block size is named twice; name each once.")
        if not 1 <= self.reach <= MAX_REACH:
            raise InputError(f"reach is {self.reach}, but must be within 1 to {MAX_REACH}.")

    def sizes(self, own: int) -> tuple[int, ...]:
        """The block sizes to try, ascending, for a drafter whose own is `own`."""
        around = range(max(2, own - self.reach), own + self.reach + 1)
        return tuple(sorted(self.block_sizes)) or tuple(around)
