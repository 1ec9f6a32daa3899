"""`paceline train`: a drafter for a target, from recorded conversations."""

from __future__ import annotations

from paceline.train.config import TrainConfig as Arguments

__all__ = ["Arguments", "run"]


def run(args: Arguments) -> None:
    """Train, or resume, and say where the drafter is."""
    from paceline.train.trainer import train

    print(train(args))
