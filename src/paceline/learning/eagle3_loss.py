"""What an EAGLE-3 drafter is rewarded for."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import InputError


@dataclass(frozen=True)
class Eagle3LossConfig:
    """What the drafter is rewarded for."""

    steps: int = 5
    """Steps on its own states that every sampled position learns (training-time test)."""
    step_decay: float = 0.8
    """Weight of a step against the one before it."""
    soft: float = 1.0
    """Share of the target's recorded distribution in what is learnt; the rest is the token it chose."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps is {self.steps}, but must be at least 1.")
        for name in ("step_decay", "soft"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}, but must be within 0..1.")
