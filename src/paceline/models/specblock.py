r"""SpecBlock: a draft network whose forward gives K dependent positions (arXiv 2605.07243).

    condition [n, H] \
    token i+1 [n, H]  >-- norm each, concatenate, fuse --> slots [n, K, H] --layers, with shifts--> hidden --> marginals
    query k   [K, H] /                                                                        norm, head; rank head

The condition of a position i is its features where the target has read it, and the hidden state of the slot that
drafted its next token where it has not: so blocks follow one another. Slot k of position i predicts token i + 2 + k
and stands at position i + 1 + k. It sees every slot of earlier positions, and slots up to k of its own.

Flattened to rows, position by position and slot by slot, that is a plain causal mask.

Letters: b sequences, n positions, k slots of a position, m blocks, c blocks that start, s rows (slots of all of them),
q rows that are chosen, h hidden, f width of the features, r rank classes, a numbers that the rank head sees.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from paceline.models.attention import Visible
from paceline.models.layers import BlockAttention, RMSNorm, SwiGLU
from paceline.models.rope import RotaryEmbedding, Rotation
from paceline.models.specblock_config import RANK_CLASSES, SpecBlockConfig
from paceline.models.unrolled import Chosen, Store, UnrolledNetwork, chosen_rows, rows_of

NUM_TOP, GAPS = 10, (1, 2, 4)
"""What the rank head sees of a distribution: so many log-probs, and how far the first is ahead of these (from 0)."""


class SlotInput(nn.Module):
    """Condition, token and slot fused into the row that the layers start from."""

    def __init__(self, config: SpecBlockConfig):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.condition_proj = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.fuse = nn.Linear(3 * hidden, hidden, bias=False)
        self.condition_norm = RMSNorm(hidden, eps)
        self.token_norm = RMSNorm(hidden, eps)
        self.query_norm = RMSNorm(hidden, eps)
        self.position_queries = nn.Embedding(config.num_slots, hidden)

    def forward(self, condition: Float[Tensor, "b n h"], token: Float[Tensor, "b n h"]) -> Float[Tensor, "b s h"]:
        slots = self.position_queries.weight
        parts = (
            self.condition_norm(condition)[:, :, None].expand(-1, -1, len(slots), -1),
            self.token_norm(token)[:, :, None].expand(-1, -1, len(slots), -1),
            self.query_norm(slots).expand(*condition.shape[:2], -1, -1),
        )
        return self.fuse(torch.cat(parts, -1)).flatten(1, 2)


class SlotLayer(nn.Module):
    """Llama's decoder layer; keys and values go through the caller's store."""

    def __init__(self, config: SpecBlockConfig, rope: RotaryEmbedding):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.self_attn = BlockAttention(hidden, heads, groups, config.head_dim, eps, rope, normed_heads=False)
        self.mlp = SwiGLU(hidden, config.intermediate_size)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)

    def forward(
        self,
        rows: Float[Tensor, "b s h"],
        rotation: Rotation,
        index: int,
        store: Store,
        visible: Visible,
        chosen: Int64[Tensor, "b q"] | None = None,
    ) -> Float[Tensor, "b q h"]:
        """The rows after this layer; `chosen`: of those alone, and `visible` is theirs."""
        normed = self.input_layernorm(rows)
        keys, values = store(index, *self.self_attn.keys_values(normed, rotation))
        if chosen is not None:
            rows, normed, cosine, sine = (chosen_rows(each, chosen) for each in (rows, normed, *rotation))
            rotation = cosine, sine
        rows = rows + self.self_attn.over(normed, rotation, keys, values, visible)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class SpecBlockNetwork(UnrolledNetwork):
    """The draft network; the published ones borrow the target's embedding (`attach`) and carry a head of their own."""

    config: SpecBlockConfig
    layers: Sequence[SlotLayer]

    def __init__(self, config: SpecBlockConfig):
        super().__init__(config)
        self.config, self.num_slots = config, config.num_slots
        hidden = config.hidden_size
        self.rope = RotaryEmbedding(config.rope, config.head_dim)
        self.input_layer = SlotInput(config)
        self.layers = nn.ModuleList(  # type: ignore[assignment]  # typed by what it holds
            SlotLayer(config, self.rope) for _ in range(config.num_hidden_layers)
        )
        self.shift_proj = nn.ModuleList(
            nn.Linear(2 * hidden, hidden, bias=False)
            for _ in range(config.num_hidden_layers - 1 if config.shifts else 0)
        )
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        self.rank_head = nn.Sequential(
            nn.Linear(hidden + NUM_TOP + len(GAPS) + 2, config.rank_hidden_size, bias=False),
            nn.SiLU(),
            nn.Linear(config.rank_hidden_size, RANK_CLASSES, bias=False),
        )

    def condition(self, features: Float[Tensor, "b n f"]) -> Float[Tensor, "b n h"]:
        return self.input_layer.condition_proj(features.to(self.dtype))

    def later_condition(
        self, inherited: Float[Tensor, "b c h"], condition: Float[Tensor, "b c h"]
    ) -> Float[Tensor, "b c h"]:
        return inherited if self.config.inherits else condition

    def slot_states(
        self,
        condition: Float[Tensor, "b n h"],
        tokens: Int64[Tensor, "b n"],
        positions: Int64[Tensor, "b n"],
        store: Store,
        visible: Visible,
        chosen: Chosen | None = None,
    ) -> Float[Tensor, "b m k h"]:
        size = self.config.num_slots
        rows = self.input_layer(condition, self.embed(tokens))
        stands = positions[..., None] + 1 + torch.arange(size, device=positions.device)
        rotation = self.rope(stands.flatten(-2))
        for index, layer in enumerate(self.layers):
            if index and self.config.shifts:
                rows = self._shifted(index - 1, rows)
            if chosen is not None and index == len(self.layers) - 1:
                places, seen = chosen
                rows = layer(rows, rotation, index, store, seen.flatten(1, 2)[:, None], rows_of(places, size))
            else:
                rows = layer(rows, rotation, index, store, visible)
        return rows.unflatten(1, (-1, size))

    def _shifted(self, index: int, rows: Float[Tensor, "b s h"]) -> Float[Tensor, "b s h"]:
        """Every slot joined with the one before it; the first with itself."""
        slots = rows.unflatten(1, (-1, self.config.num_slots))
        earlier = torch.cat((slots[:, :, :1], slots[:, :, :-1]), 2)
        return self.shift_proj[index](torch.cat((slots, earlier), -1)).flatten(1, 2)

    def rank_logits(self, hidden: Float[Tensor, "*b h"], statistics: Float[Tensor, "*b a"]) -> Float[Tensor, "*b r"]:
        """Scores of the bucket of the target token's rank in these slots' distributions, from hidden states before the
        norm and `rank_statistics`. Nothing of it reaches the weights below."""
        normed = self.norm(hidden).detach()
        return self.rank_head(torch.cat((normed, statistics.to(normed.dtype)), -1))


def rank_statistics(top: Float[Tensor, "*b 10"], entropy: Float[Tensor, "*b"]) -> Float[Tensor, "*b a"]:
    """What the rank head sees of distributions: their ten highest log-probs, the first one's lead over the second,
    third and fifth, its probability, and the entropy (nats)."""
    gaps = top[..., :1] - top[..., list(GAPS)]
    return torch.cat((top, gaps, top[..., :1].exp(), entropy[..., None]), -1)
