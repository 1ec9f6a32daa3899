"""Pieces that the draft networks share: RMSNorm, SwiGLU, and attention over a context and a block.

Linear layers are plain `nn.Linear` children that are always *called*, so that a faster module may take
their place.

Letters: b rows, n tokens, s rows of the block, t context tokens, u = t + s, h hidden, k key/value heads,
g heads of either kind, d head dimension, w = g * d, o what comes out.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from paceline.models.attention import Visible, attend
from paceline.models.rope import RotaryEmbedding, Rotation, rotate

KeysValues = tuple[Float[Tensor, "b k t d"], Float[Tensor, "b k t d"]]


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class BlockAttention(nn.Module):
    """Queries from the block; keys and values from the context, then the block, by the same projections.

    Grouped key/value heads, no causality of its own. `normed_heads`: RMSNorm per head on queries and keys (Qwen3).
    `output_size` where what comes out is of another width than what goes in.
    """

    q_norm: nn.Module
    k_norm: nn.Module

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        rope: RotaryEmbedding,
        normed_heads: bool = True,
        output_size: int | None = None,
    ):
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, output_size or hidden_size, bias=False)
        self.q_norm = RMSNorm(head_dim, eps) if normed_heads else nn.Identity()
        self.k_norm = RMSNorm(head_dim, eps) if normed_heads else nn.Identity()
        self.rope = rope

    def context_kv(self, context: Float[Tensor, "b t h"], positions: Int64[Tensor, "#b t"]) -> KeysValues:
        """Keys (turned by their positions) and values of the context, ready for a cache."""
        return self.keys_values(context, self.rope(positions))

    def keys_values(self, x: Float[Tensor, "b n h"], rotation: Rotation) -> KeysValues:
        keys = self.k_norm(self._heads(self.k_proj(x)))
        return rotate(keys.transpose(1, 2), rotation), self._heads(self.v_proj(x)).transpose(1, 2)

    def forward(
        self,
        block: Float[Tensor, "b s h"],
        rotation: Rotation,
        context: KeysValues,
        visible: Visible,
    ) -> Float[Tensor, "b s h"]:
        """`rotation` is that of the block's positions; `visible` None: every row sees everything."""
        own = self.keys_values(block, rotation)
        keys, values = (torch.cat(pair, 2) for pair in zip(context, own, strict=True))
        return self.over(block, rotation, keys, values, visible)

    def over(
        self,
        block: Float[Tensor, "b s h"],
        rotation: Rotation,
        keys: Float[Tensor, "b k u d"],
        values: Float[Tensor, "b k u d"],
        visible: Visible,
    ) -> Float[Tensor, "b s o"]:
        """The same over keys and values that hold the block's own."""
        queries = rotate(self.q_norm(self._heads(self.q_proj(block))).transpose(1, 2), rotation)
        return self.o_proj(attend(queries, keys, values, visible).transpose(1, 2).flatten(2))

    def _heads(self, x: Float[Tensor, "b n w"]) -> Float[Tensor, "b n g d"]:
        return x.unflatten(-1, (-1, self.head_dim))


class BlockLayer(nn.Module):
    """Pre-norm residual layer: attention over context and block, then SwiGLU."""

    def __init__(self, attention: BlockAttention, hidden_size: int, intermediate_size: int, eps: float):
        super().__init__()
        self.self_attn = attention
        self.mlp = SwiGLU(hidden_size, intermediate_size)
        self.input_layernorm = RMSNorm(hidden_size, eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps)

    def forward(
        self,
        block: Float[Tensor, "b s h"],
        rotation: Rotation,
        context: KeysValues,
        visible: Visible,
    ) -> Float[Tensor, "b s h"]:
        block = block + self.self_attn(self.input_layernorm(block), rotation, context, visible)
        return block + self.mlp(self.post_attention_layernorm(block))
