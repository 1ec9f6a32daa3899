"""DFlash: a block-diffusion draft network (arXiv 2602.06036).

    features [n, taps*H] --fc, hidden_norm--> context [n, H] --k/v of each layer--> keys, values
                                                                                     |
    [anchor, mask, ..., mask] --embedding--> block [s, H] --layers, norm--> hidden [s, H] --head--> marginals

Every row of the block sees the context before the anchor and the whole block, both ways; row i > 0 yields
the marginal of the i-th token after the anchor.

Letters: b rows, n tokens, t context tokens, s rows of the block (of all blocks, when training), u = t + s,
m blocks of a row, l drafted positions of a block, f width of the features, h hidden, v target vocabulary,
w draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from paceline.models.attention import Visible
from paceline.models.dflash_config import DFlashConfig
from paceline.models.draft_network import DraftNetwork
from paceline.models.layers import BlockAttention, BlockLayer, KeysValues, RMSNorm
from paceline.models.rope import RotaryEmbedding


class DFlashNetwork(DraftNetwork):
    """The draft network; `block` is what serves, `training_forward` what learns."""

    layers: Sequence[BlockLayer]

    def __init__(self, config: DFlashConfig):
        super().__init__(config)
        self.config = config
        eps, hidden = config.rms_norm_eps, config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * config.target_hidden_size, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.rope = RotaryEmbedding(config.rope, config.head_dim)
        self.layers = nn.ModuleList(  # type: ignore[assignment]  # typed by what it holds
            BlockLayer(_attention(config, self.rope), hidden, config.intermediate_size, eps)
            for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(hidden, eps)

    def context(self, features: Float[Tensor, "b n f"]) -> Float[Tensor, "b n h"]:
        """What the layers' keys and values of the context are made of; features may be of another dtype."""
        return self.hidden_norm(self.fc(features.to(self.dtype)))

    def block(
        self,
        block_embeds: Float[Tensor, "b s h"],
        block_positions: Int64[Tensor, "b s"],
        kv: Sequence[KeysValues],
        mask: Bool[Tensor, "b 1 s t"] | None = None,
    ) -> Float[Tensor, "b s h"]:
        """One block per row over the cached context: the serving form.

        `mask` says which context each row of the block sees (None: all); the block sees all of itself.
        """
        if mask is not None:
            mask = torch.cat((mask, mask.new_ones(*mask.shape[:3], mask.shape[2])), -1)
        return self.norm(self._through_layers(block_embeds, block_positions, kv, mask))

    def training_forward(
        self,
        features: Float[Tensor, "b n f"],
        tokens: Int64[Tensor, "b n"],
        anchors: Int64[Tensor, "b m"],
        block_size: int | None = None,
        sparse: bool | None = None,
    ) -> Float[Tensor, "b m l h"]:
        """All m blocks of every row at once: hidden states of the drafted positions.

        Row j of the result's third axis predicts the token at anchor + j + 1. A block sees features
        strictly before its anchor and itself, so the padding of shorter rows is never seen; a padding
        anchor (0, say) costs its work and is for the loss to leave out. `sparse` attends by FlexAttention, which
        skips what the mask hides, rather than by a dense mask; None does so on CUDA.
        """
        size = block_size or self.config.block_size
        num_rows, num_blocks = anchors.shape
        block = torch.full((num_rows, num_blocks, size), self.config.mask_token_id, device=tokens.device)
        block[:, :, 0] = tokens.gather(1, anchors)
        positions = (anchors[:, :, None] + torch.arange(size, device=tokens.device)).flatten(1)
        context = self.context(features)
        rotation = self.rope(torch.arange(tokens.shape[1], device=tokens.device)[None])
        kv = [layer.self_attn.keys_values(context, rotation) for layer in self.layers]
        make_mask = sparse_block_mask if (tokens.is_cuda if sparse is None else sparse) else block_mask
        mask = make_mask(anchors, tokens.shape[1], size)
        hidden = self._through_layers(self.embed(block.flatten(1)), positions, kv, mask)
        return self.norm(hidden.unflatten(1, (num_blocks, size))[:, :, 1:])

    def _through_layers(
        self,
        hidden: Float[Tensor, "b s h"],
        positions: Int64[Tensor, "b s"],
        kv: Sequence[KeysValues],
        visible: Visible,
    ) -> Float[Tensor, "b s h"]:
        rotation = self.rope(positions)
        for layer, context in zip(self.layers, kv, strict=True):
            hidden = layer(hidden, rotation, context, visible)
        return hidden


def block_mask(anchors: Int64[Tensor, "b m"], num_context: int, block_size: int) -> Bool[Tensor, "b 1 s u"]:
    """Who sees what when all blocks of a row run in one pass.

              context 0 1 2 3   block of 1   block of 3
    block of 1        x . . .      x x          . .
                      x . . .      x x          . .
    block of 3        x x x .      . .          x x
                      x x x .      . .          x x
    """
    num_blocks, device = anchors.shape[1], anchors.device
    owners = torch.arange(num_blocks, device=device).repeat_interleave(block_size)
    before = torch.arange(num_context, device=device) < anchors[:, owners, None]
    together = (owners[:, None] == owners).expand(len(anchors), -1, -1)
    return torch.cat((before, together), -1)[:, None]


def sparse_block_mask(anchors: Int64[Tensor, "b m"], num_context: int, block_size: int) -> BlockMask:
    """`block_mask` for FlexAttention."""
    num_rows, num_blocks = anchors.shape
    queries = num_blocks * block_size
    return create_block_mask(
        lambda row, head, query, key: torch.where(
            key < num_context,
            key < anchors[row, query // block_size],
            (key - num_context) // block_size == query // block_size,
        ),
        num_rows,
        None,
        queries,
        num_context + queries,
        device=anchors.device,
    )


def _attention(config: DFlashConfig, rope: RotaryEmbedding) -> BlockAttention:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return BlockAttention(config.hidden_size, heads, kv_heads, config.head_dim, config.rms_norm_eps, rope)
