"""What a training run of a SpecBlock drafter is told; flags are generated from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.errors import InputError
from paceline.learning.specblock_loss import SpecBlockLossConfig
from paceline.train.config import NetworkShape, RunConfig


@dataclass(frozen=True)
class SpecBlockShape(NetworkShape):
    """A SpecBlock draft network. Its embedding is the target's too."""

    num_slots: int = 4
    """Tokens that one forward drafts (K)."""
    num_blocks: int = 2
    """Blocks after one another that are trained (M)."""
    own_head: bool = False
    """Learn a head of its own, rather than borrow the target's; it starts as the target's."""
    shifts: bool = True
    """Join every slot with the one before it between layers; off for the ablation."""
    inherits: bool = True
    """Let later blocks start from the hidden state of the slot before them; off for the ablation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.num_slots, self.num_blocks) < 1:
            raise InputError(
                f"num_slots is {self.num_slots} and num_blocks {self.num_blocks}, but both must be at least 1."
            )


@dataclass(frozen=True)
class SpecBlockTrainConfig(RunConfig):
    """A training run of a SpecBlock drafter. The same settings again resume it."""

    shape: SpecBlockShape = field(default_factory=SpecBlockShape)
    """The draft network."""
    loss: SpecBlockLossConfig = field(default_factory=SpecBlockLossConfig)
    """What it learns."""
