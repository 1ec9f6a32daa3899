"""What a training run of a SpecBlock drafter is told; flags are generated from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.errors import InputError
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
class SpecBlockLossConfig:
    """What the drafter is rewarded for."""

    soft: float = 1.0
    """Share of the target's recorded distribution in what is learnt; the rest is the token it chose."""
    slot_decay: float = 0.8
    """Weight of a slot against the one before it."""
    valid_prefix: bool = True
    """Learn a slot only where those before it were right; off for the ablation."""
    rank: bool = True
    """Train the rank head; off for the ablation."""
    rank_share: float = 0.5
    """Weight of the rank loss beside the draft loss."""
    smoothing: float = 0.2
    """Share of a rank bucket's label that goes to its neighbours."""
    under_cost: float = 1.0
    """Cost of a bucket below the true one, for each bucket between: the token is lost."""
    over_cost: float = 0.25
    """Cost of a bucket above the true one, for each bucket between: nodes are wasted."""

    def __post_init__(self) -> None:
        for name in ("soft", "slot_decay", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}, but must be within 0..1.")
        for name in ("rank_share", "under_cost", "over_cost"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}, but must be 0 or more.")


@dataclass(frozen=True)
class SpecBlockTrainConfig(RunConfig):
    """A training run of a SpecBlock drafter. The same settings again resume it."""

    shape: SpecBlockShape = field(default_factory=SpecBlockShape)
    """The draft network."""
    loss: SpecBlockLossConfig = field(default_factory=SpecBlockLossConfig)
    """What it learns."""
