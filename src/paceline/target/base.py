"""What the loop needs of a target.

Letters: b rows, m nodes of a pass (root included), n tokens, f width of the features, v vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.kv_cache import SlotCache
from paceline.tree import TreeBatch


@dataclass(frozen=True)
class TargetInfo:
    """Facts about a target that drafters, checks and reports need; values only."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Pass:
    """What one forward pass yields: next-token logits, and the features (None when nothing is tapped)."""

    logits: Float[Tensor, "b m v"]
    features: Float[Tensor, "b n f"] | None


class Target(ABC):
    """A model whose output is reproduced, with the embedding and head that drafters may borrow."""

    info: TargetInfo
    embedding: Float[Tensor, "v h"]
    head: Float[Tensor, "v h"]

    @abstractmethod
    def check_layers(self, layer_ids: Sequence[int]) -> None:
        """Raise an InputError when a feature layer is not one of this target's."""

    @abstractmethod
    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        """An empty cache for this target."""

    @abstractmethod
    def prefill(self, cache: SlotCache, row: int, tokens: Sequence[int], feature_layers: Sequence[int] = ()) -> Pass:
        """Read tokens into a row, after those it has: logits after the last one (m = 1), features of every one.

        Features are the outputs of `feature_layers`, concatenated in this order; without layers, None.
        """

    @abstractmethod
    def verify(self, cache: SlotCache, trees: TreeBatch, feature_layers: Sequence[int] = ()) -> Pass:
        """One pass over the trees of rows 0 .. b-1; commit with `cache.keep` afterwards."""
