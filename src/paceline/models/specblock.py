r"""SpecBlock: a draft network whose forward gives K dependent positions (arXiv 2605.07243).

    condition [n, H] \
    token i+1 [n, H]  >-- norm each, concatenate, fuse --> slots [n, K, H] --layers, with shifts--> hidden --> marginals
    query k   [K, H] /                                                                        norm, head; rank head

The condition of a position i is its features where the target has read it, and the hidden state of the slot that
drafted its next token where it has not: so blocks follow one another. Slot k of position i predicts token i + 2 + k
and stands at position i + 1 + k. It sees every slot of earlier positions, and slots up to k of its own.

Flattened to rows, position by position and slot by slot, that is a plain causal mask, and the keys and values of a
position that the target has read never change. A later block starts from one slot of an earlier one: it sees what that
slot saw, and its own slots. Both forms, that over whole texts which learns and that with a cache which serves, are made
of the same two steps, `blocks` and `later`.

Letters: b sequences, n positions, k slots of a position, m blocks, c blocks that start, s rows (slots of all of them),
q rows that are chosen, u rows that there are, h hidden, f width of the features, w draft vocabulary, r rank classes,
a numbers that the rank head sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn
from torch.nn.functional import pad

from paceline.models.attention import Visible
from paceline.models.draft_network import DraftNetwork
from paceline.models.layers import BlockAttention, KeysValues, RMSNorm, SwiGLU
from paceline.models.rope import RotaryEmbedding, Rotation
from paceline.models.specblock_config import RANK_CLASSES, SpecBlockConfig

NUM_TOP, GAPS = 10, (1, 2, 4)
"""What the rank head sees of a distribution: so many log-probs, and how far the first is ahead of these (from 0)."""

Store = Callable[[int, Tensor, Tensor], KeysValues]
"""(layer, keys and values of new rows) -> those of all rows, the new ones last."""


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
            rows, normed, cosine, sine = (_chosen(each, chosen) for each in (rows, normed, *rotation))
            rotation = cosine, sine
        rows = rows + self.self_attn.over(normed, rotation, keys, values, visible)
        return rows + self.mlp(self.post_attention_layernorm(rows))


def _chosen(rows: Shaped[Tensor, "b s *d"], chosen: Int64[Tensor, "b q"]) -> Shaped[Tensor, "b q *d"]:
    return rows[torch.arange(len(rows), device=rows.device)[:, None], chosen]


@dataclass(frozen=True)
class Blocks:
    """Blocks of a batch, from each of whose slots others may start.

    `positions` are those that the blocks stand for; `seen` says which of all rows each slot sees.
    """

    hidden: Float[Tensor, "b m k h"]
    condition: Float[Tensor, "b m h"]
    positions: Int64[Tensor, "b m"]
    seen: Bool[Tensor, "b m k u"]

    def then(self, more: Blocks) -> Blocks:
        """These, and others whose rows came after."""
        seen = pad(self.seen, (0, more.seen.shape[-1] - self.seen.shape[-1]))
        return Blocks(
            torch.cat((self.hidden, more.hidden), 1),
            torch.cat((self.condition, more.condition), 1),
            torch.cat((self.positions, more.positions), 1),
            torch.cat((seen, more.seen), 1),
        )


class SpecBlockNetwork(DraftNetwork):
    """The draft network; the published ones borrow the target's embedding (`attach`) and carry a head of their own."""

    layers: Sequence[SlotLayer]

    def __init__(self, config: SpecBlockConfig):
        super().__init__(config)
        self.config = config
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
        """What blocks at positions that the target has read start from; features may be of another dtype."""
        return self.input_layer.condition_proj(features.to(self.dtype))

    def blocks(
        self,
        features: Float[Tensor, "b n f"],
        tokens: Int64[Tensor, "b n"],
        positions: Int64[Tensor, "b n"],
        store: Store,
        visible: Visible,
        places: Int64[Tensor, "b m"],
        seen: Bool[Tensor, "b m k u"],
    ) -> Blocks:
        """Blocks at `places` of these positions, which the target has read. Of the others, which later ones see, only
        keys and values are computed in the last layer.

        `tokens[i]` is the token after position i; `visible` says which rows each of the slots' rows sees, and `seen`
        says it of those at `places`.
        """
        condition = self.condition(features)
        hidden = self.slot_states(condition, tokens, positions, store, visible, (places, seen))
        return Blocks(hidden, _chosen(condition, places), _chosen(positions, places), seen)

    def later(
        self,
        blocks: Blocks,
        parents: Int64[Tensor, "b c"],
        slots: Int64[Tensor, "b c"],
        tokens: Int64[Tensor, "b c"],
        store: Store,
    ) -> Blocks:
        """Blocks that start from slot `slots[i]` of block `parents[i]`, which drafted `tokens[i]`.

        Their rows come after all that `blocks.seen` tells of.
        """
        count, size = parents.shape[1], self.config.num_slots
        row = torch.arange(len(parents), device=parents.device)[:, None]
        inherited, features = blocks.hidden[row, parents, slots], blocks.condition[row, parents]
        condition = inherited if self.config.inherits else features
        positions = blocks.positions[row, parents] + 1 + slots
        before = blocks.seen[row, parents, slots][:, :, None].expand(-1, -1, size, -1)
        own = torch.eye(count, dtype=torch.bool, device=parents.device)[:, None, :, None]
        causal = torch.ones(size, size, dtype=torch.bool, device=parents.device).tril()[None, :, None]
        own = (own & causal).flatten(2).expand(len(parents), -1, -1, -1)
        seen = torch.cat((before, own), -1)
        hidden = self.slot_states(condition, tokens, positions, store, seen.flatten(1, 2)[:, None])
        return Blocks(hidden, features, positions, seen)

    def slot_states(
        self,
        condition: Float[Tensor, "b n h"],
        tokens: Int64[Tensor, "b n"],
        positions: Int64[Tensor, "b n"],
        store: Store,
        visible: Visible,
        chosen: tuple[Int64[Tensor, "b m"], Bool[Tensor, "b m k u"]] | None = None,
    ) -> Float[Tensor, "b m k h"]:
        """Hidden states, before the last norm, of the slots of positions.

        `tokens[i]` is the token after position i; `visible` says which rows each of the slots' rows sees. `chosen`
        asks for some of the positions, by their places, and says what their slots see.
        """
        size = self.config.num_slots
        rows = self.input_layer(condition, self.embed(tokens))
        stands = positions[..., None] + 1 + torch.arange(size, device=positions.device)
        rotation = self.rope(stands.flatten(-2))
        for index, layer in enumerate(self.layers):
            if index and self.config.shifts:
                rows = self._shifted(index - 1, rows)
            if chosen is not None and index == len(self.layers) - 1:
                places, seen = chosen
                own = places[..., None] * size + torch.arange(size, device=places.device)
                rows = layer(rows, rotation, index, store, seen.flatten(1, 2)[:, None], own.flatten(1))
            else:
                rows = layer(rows, rotation, index, store, visible)
        return rows.unflatten(1, (-1, size))

    def _shifted(self, index: int, rows: Float[Tensor, "b s h"]) -> Float[Tensor, "b s h"]:
        """Every slot joined with the one before it; the first with itself."""
        slots = rows.unflatten(1, (-1, self.config.num_slots))
        earlier = torch.cat((slots[:, :, :1], slots[:, :, :-1]), 2)
        return self.shift_proj[index](torch.cat((slots, earlier), -1)).flatten(1, 2)

    def slot_logits(self, hidden: Float[Tensor, "*b h"]) -> Float[Tensor, "*b w"]:
        """Scores of the draft vocabulary, from hidden states before the norm."""
        return self.draft_logits(self.norm(hidden))

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


def visible_rows(first_row: Int64[Tensor, " b"], count: int, span: int) -> Bool[Tensor, "b 1 s u"]:
    """The plain causal mask of `count` rows that follow `first_row` others, over `span` rows in all."""
    rows = first_row[:, None] + torch.arange(count, device=first_row.device)
    return (torch.arange(span, device=first_row.device) <= rows[..., None])[:, None]
