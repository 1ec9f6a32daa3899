"""The shape of a SpecBlock draft network (arXiv 2605.07243)."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.models.config_checks import check_network, require
from paceline.models.rope import RopeConfig

_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_slots",
    "num_target_layers",
    "max_position_embeddings",
    "rank_hidden_size",
)
RANK_ENDS = (1, 4, 10)
"""Last ranks of the buckets of the target's token in a slot's draft distribution."""
RANK_CLASSES = len(RANK_ENDS) + 1
"""First, 2nd to 4th, 5th to 10th, beyond."""
MIN_VOCABULARY = RANK_ENDS[-1]


@dataclass(frozen=True)
class SpecBlockConfig:
    """Sizes of the network, and of the target it was made for.

    `num_slots` (K) tokens are drafted by one forward. `target_layer_ids` are the tapped layers, whose outputs are the
    features. `vocab_size` is the target's; `draft_vocab_size` None means the draft's is the same. `has_embedding` and
    `has_head` say whether the network carries its own; otherwise it borrows the target's. Off for ablations: `shifts`,
    without which no slot is joined with the one before it, and `inherits`, without which later blocks start from the
    features that the first one did, and not from the hidden state of the slot before them.

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
    num_hidden_layers: int = 2
    num_slots: int = 4
    draft_vocab_size: int | None = None
    rank_hidden_size: int = 256
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 32768
    rope: RopeConfig = field(default_factory=RopeConfig)
    shifts: bool = True
    inherits: bool = True
    has_embedding: bool = False
    has_head: bool = True

    @property
    def target_hidden_size(self) -> int:
        """The features are as wide as the network."""
        return self.hidden_size

    def __post_init__(self) -> None:
        check_network(self, _COUNTS)
        reduced = self.draft_vocab_size
        fits = MIN_VOCABULARY <= (self.vocab_size if reduced is None else reduced) <= self.vocab_size
        expected = (
            f"at least {MIN_VOCABULARY}, which the rank head looks at, and at most the target's {self.vocab_size}"
        )
        require(fits, "draft_vocab_size", reduced, expected)
