"""What a training run of parallel heads is told; flags are generated from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.errors import InputError
from paceline.train.config import LossConfig, RunConfig


@dataclass(frozen=True)
class HeadsShape:
    """Parallel heads. Hidden size, vocabulary, embedding and head are the target's."""

    num_heads: int = 5
    """Heads: tokens that are drafted after the anchor."""
    num_layers: int = 1
    """Residual layers of each head."""
    target_layer_ids: tuple[int, ...] = (1, 14, 27)
    """Target layers whose outputs are recorded in the shards, in their order there."""
    draft_vocab_size: int | None = 9000
    """Size of the reduced draft vocabulary (the most frequent response tokens); None drafts the target's whole."""

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.num_layers < 1 or not self.target_layer_ids:
            raise InputError(
                f"heads need at least one of each: num_heads is {self.num_heads}, num_layers {self.num_layers}, and "
                f"{len(self.target_layer_ids)} tapped layers came."
            )


@dataclass(frozen=True)
class HeadsTrainConfig(RunConfig):
    """A training run of parallel heads. The same settings again resume it."""

    shape: HeadsShape = field(default_factory=HeadsShape)
    """The heads."""
    loss: LossConfig = field(default_factory=LossConfig)
    """What they learn."""
