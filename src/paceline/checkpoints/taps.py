"""Which of a target's layers published drafters read where they do not say."""

from __future__ import annotations


def default_taps(num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs are the features: a low, a middle and a high one."""
    return (1, num_layers // 2 - 1, num_layers - 4)
