"""What a SpecBlock drafter is rewarded for."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import InputError


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
