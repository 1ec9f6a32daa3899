"""Attention under a mask that is dense, sparse or absent; which one is chosen by what the mask is.

Letters: b rows, g query heads, k key/value heads, s queries, u keys, d head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention


class Causal(Enum):
    """Each query sees the keys up to its own, of which there are as many."""

    CAUSAL = auto()


Visible = Tensor | BlockMask | Causal | None
"""Who is seen: Bool[b, 1, s, u], a BlockMask of FlexAttention, causal, or None for everything."""


def attend(
    queries: Float[Tensor, "b g s d"],
    keys: Float[Tensor, "b k u d"],
    values: Float[Tensor, "b k u d"],
    visible: Visible,
) -> Float[Tensor, "b g s d"]:
    """Softmax attention with grouped key/value heads over what is visible."""
    if isinstance(visible, BlockMask):
        sparse: Any = _compiled() if queries.is_cuda else flex_attention
        return sparse(queries, keys, values, block_mask=visible, enable_gqa=True)
    mask = None if isinstance(visible, Causal) else visible
    return scaled_dot_product_attention(
        queries, keys, values, mask, is_causal=visible is Causal.CAUSAL, enable_gqa=True
    )


@cache
def _compiled() -> Callable[..., Tensor]:
    """FlexAttention is sparse only once it is compiled."""
    return torch.compile(flex_attention)
