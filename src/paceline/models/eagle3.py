r"""EAGLE-3: one decoder layer that goes on from its own states (arXiv 2503.01840).

    state i    [n, H] --norm--\
                               >-- [n, 2H] --attention--> + state --norm, MLP--> + --> state that drafted token i + 2
    token i+1  [n, H] --norm--/                                                        norm, head: its distribution

The state of a position i is `fc` of its features where the target has read it, and where it has not, what the layer
gave for the position before, which drafted its token. In the words of `unrolled`, a block has one slot; it stands at
its own position.

Letters: b sequences, n positions, m those that are chosen, q rows that are chosen, h hidden, f width of the features.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from paceline.models.attention import Visible
from paceline.models.eagle3_config import Eagle3Config
from paceline.models.layers import BlockAttention, RMSNorm, SwiGLU
from paceline.models.rope import RotaryEmbedding, Rotation
from paceline.models.unrolled import Chosen, Store, UnrolledNetwork, chosen_rows


class FusingLayer(nn.Module):
    """Llama's decoder layer, whose attention reads the token's embedding beside the state."""

    def __init__(self, config: Eagle3Config, rope: RotaryEmbedding):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.norm_before_residual = config.norm_before_residual
        self.self_attn = BlockAttention(
            2 * hidden, heads, groups, config.head_dim, eps, rope, normed_heads=False, output_size=hidden
        )
        self.mlp = SwiGLU(hidden, config.intermediate_size)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def forward(
        self,
        state: Float[Tensor, "b n h"],
        token: Float[Tensor, "b n h"],
        rotation: Rotation,
        store: Store,
        visible: Visible,
        chosen: Int64[Tensor, "b q"] | None = None,
    ) -> Float[Tensor, "b q h"]:
        """The states after it; `chosen`: of those positions alone, and `visible` is theirs."""
        normed = self.hidden_norm(state)
        past = normed if self.norm_before_residual else state
        joined = torch.cat((self.input_layernorm(token), normed), -1)
        keys, values = store(0, *self.self_attn.keys_values(joined, rotation))
        if chosen is not None:
            past, joined, cosine, sine = (chosen_rows(each, chosen) for each in (past, joined, *rotation))
            rotation = cosine, sine
        state = past + self.self_attn.over(joined, rotation, keys, values, visible)
        return state + self.mlp(self.post_attention_layernorm(state))


class Eagle3Network(UnrolledNetwork):
    """The draft network; published ones carry a head of their own, and some an embedding."""

    config: Eagle3Config
    num_slots = 1

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        self.config = config
        self.rope = RotaryEmbedding(config.rope, config.head_dim)
        features = len(config.target_layer_ids) * config.target_hidden_size
        self.fc = nn.Linear(features, config.hidden_size, bias=False)
        self.midlayer = FusingLayer(config, self.rope)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def condition(self, features: Float[Tensor, "b n f"]) -> Float[Tensor, "b n h"]:
        return self.fc(features.to(self.dtype))

    def slot_states(
        self,
        condition: Float[Tensor, "b n h"],
        tokens: Int64[Tensor, "b n"],
        positions: Int64[Tensor, "b n"],
        store: Store,
        visible: Visible,
        chosen: Chosen | None = None,
    ) -> Float[Tensor, "b m 1 h"]:
        rotation = self.rope(positions)
        embedded = self.embed(tokens)
        if chosen is None:
            return self.midlayer(condition, embedded, rotation, store, visible)[:, :, None]
        places, seen = chosen
        return self.midlayer(condition, embedded, rotation, store, seen.flatten(1, 2)[:, None], places)[:, :, None]
