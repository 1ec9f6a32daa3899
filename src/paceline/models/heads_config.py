"""The shape of parallel draft heads (Medusa, arXiv 2401.10774)."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.models.config_checks import MOST_ROWS, check_counts, check_taps, check_words, require

_COUNTS = ("hidden_size", "vocab_size", "num_heads", "num_layers", "num_target_layers", "target_hidden_size")


@dataclass(frozen=True)
class HeadsConfig:
    """`num_heads` tokens are drafted, each by a head of `num_layers` residual layers.

    `target_layer_ids` are the tapped layers, whose outputs are the features. `vocab_size` is the target's;
    `draft_vocab_size` None means the draft's is the same. `target_hidden_size` 0 becomes `hidden_size`. `has_embedding`
    and `has_head` say whether the network carries its own; otherwise it borrows the target's.

    Raises:
        InputError: sizes that do not fit together.
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    num_layers: int = 1
    draft_vocab_size: int | None = None
    target_hidden_size: int = 0
    rms_norm_eps: float = 1e-6
    has_embedding: bool = False
    has_head: bool = False

    def __post_init__(self) -> None:
        if self.target_hidden_size == 0:
            object.__setattr__(self, "target_hidden_size", self.hidden_size)
        check_counts(self, _COUNTS)
        require(self.num_heads < MOST_ROWS, "num_heads", self.num_heads, f"below {MOST_ROWS}")
        require(self.rms_norm_eps > 0, "rms_norm_eps", self.rms_norm_eps, "positive")
        check_taps(self)
        check_words(self)
