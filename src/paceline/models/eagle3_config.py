"""The shape of an EAGLE-3 draft network (arXiv 2503.01840)."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.models.config_checks import check_network, check_words
from paceline.models.rope import RopeConfig

_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_target_layers",
    "target_hidden_size",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes of the network, and of the target it was made for.

    `target_layer_ids` are the tapped layers, whose outputs are the features. `vocab_size` is the target's;
    `draft_vocab_size` None means the draft's is the same. `target_hidden_size` 0 becomes `hidden_size`.
    `norm_before_residual`: what goes past the attention is the normed state, and not the state itself. `has_embedding`
    and `has_head` say whether the network carries its own; otherwise it borrows the target's.

    Raises:
        InputError: sizes that do not fit together.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    draft_vocab_size: int | None = None
    target_hidden_size: int = 0
    norm_before_residual: bool = False
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 32768
    rope: RopeConfig = field(default_factory=RopeConfig)
    has_embedding: bool = False
    has_head: bool = True

    num_hidden_layers = 1

    def __post_init__(self) -> None:
        if self.target_hidden_size == 0:
            object.__setattr__(self, "target_hidden_size", self.hidden_size)
        check_network(self, _COUNTS)
        check_words(self)
