"""The shape of a DFlash draft network (arXiv 2602.06036)."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.errors import InputError
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
        self._check_sizes()
        self._check_taps()
        self._check_vocabulary()
        self.rope.rotary_dim(self.head_dim)

    def _check_sizes(self) -> None:
        for name in _COUNTS:
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _require(self.block_size >= 2, "block_size", self.block_size, "at least 2, for it counts the anchor")
        _require(self.rms_norm_eps > 0, "rms_norm_eps", self.rms_norm_eps, "positive")
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        _require(heads % groups == 0, "num_attention_heads", heads, f"a multiple of num_key_value_heads ({groups})")

    def _check_taps(self) -> None:
        expected = f"one or more distinct layers of the target's {self.num_target_layers}, counted from 0"
        ids = self.target_layer_ids
        holds = len(set(ids)) == len(ids) > 0 and all(0 <= i < self.num_target_layers for i in ids)
        _require(holds, "target_layer_ids", list(ids), expected)

    def _check_vocabulary(self) -> None:
        size, reduced = self.vocab_size, self.draft_vocab_size
        inside = f"a token of the vocabulary of {size}"
        _require(0 <= self.mask_token_id < size, "mask_token_id", self.mask_token_id, inside)
        fits = reduced is None or 1 <= reduced <= size
        _require(fits, "draft_vocab_size", reduced, f"between 1 and the target's {size}")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InputError(f"{name} is {value!r}, but must be {expected}.")
