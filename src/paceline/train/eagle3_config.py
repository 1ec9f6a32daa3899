"""What a training run of an EAGLE-3 drafter is told; flags are generated from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.errors import InputError
from paceline.learning.eagle3_loss import Eagle3LossConfig
from paceline.train.config import NetworkShape, RunConfig


@dataclass(frozen=True)
class Eagle3Shape(NetworkShape):
    """An EAGLE-3 draft network. Its embedding is the target's too."""

    num_layers: int = 1
    """Decoder layers; there is one."""
    own_head: bool = False
    """Learn a head of its own, rather than borrow the target's; it starts as the target's."""
    norm_before_residual: bool = False
    """Let the normed state go past the attention, and not the state itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers != 1:
            raise InputError(f"num_layers is {self.num_layers}, but an EAGLE-3 drafter has one layer.")


@dataclass(frozen=True)
class Eagle3TrainConfig(RunConfig):
    """A training run of an EAGLE-3 drafter. The same settings again resume it."""

    shape: Eagle3Shape = field(default_factory=Eagle3Shape)
    """The draft network."""
    loss: Eagle3LossConfig = field(default_factory=Eagle3LossConfig)
    """What it learns."""
