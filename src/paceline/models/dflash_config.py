"""The shape of a DFlash draft network (arXiv 2602.06036)."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.models.config_checks import MOST_ROWS, check_network, require
from paceline.models.rope import RopeConfig

_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_target_layers",
    "target_hidden_size",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes of the network, and of the target it was made for.

    `block_size` counts the anchor. `target_layer_ids` are the tapped layers, whose outputs are the
    features. `vocab_size` is the target's; `draft_vocab_size` None means the draft's is the same.
    `target_hidden_size` 0 becomes `hidden_size`. `has_embedding` and `has_head` say whether the network
    carries its own; otherwise it borrows the target's.

    Raises:
        InputError: sizes that do not fit together.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    draft_vocab_size: int | None = None
    target_hidden_size: int = 0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    rope: RopeConfig = field(default_factory=RopeConfig)
    has_embedding: bool = False
    has_head: bool = False

    def __post_init__(self) -> None:
        if self.target_hidden_size == 0:
            object.__setattr__(self, "target_hidden_size", self.hidden_size)
        check_network(self, _COUNTS)
        expected = f"at least 2, for it counts the anchor, and at most {MOST_ROWS}"
        require(2 <= self.block_size <= MOST_ROWS, "block_size", self.block_size, expected)
        self._check_vocabulary()

    def _check_vocabulary(self) -> None:
        size, reduced = self.vocab_size, self.draft_vocab_size
        inside = f"a token of the vocabulary of {size}"
        require(0 <= self.mask_token_id < size, "mask_token_id", self.mask_token_id, inside)
        fits = reduced is None or 1 <= reduced <= size
        require(fits, "draft_vocab_size", reduced, f"between 1 and the target's {size}")
