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
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from paceline.models.attention import Visible
from paceline.models.dflash_config import DFlashConfig
from paceline.models.layers import BlockAttention, BlockLayer, KeysValues, RMSNorm
from paceline.models.rope import RotaryEmbedding

_BORROWABLE = ("embed_tokens", "lm_head")


class DFlashNetwork(nn.Module):
    """The draft network. Where it has no embedding or head of its own, `attach` lends it the target's.

    Borrowed weights are frozen and stay out of the `state_dict`.
    """

    layers: Sequence[BlockLayer]
    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: DFlashConfig):
        super().__init__()
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
        own_embedding = nn.Embedding(config.vocab_size, hidden) if config.has_embedding else None
        own_head = nn.Linear(hidden, self.num_draft_tokens, bias=False) if config.has_head else None
        self.register_module("embed_tokens", own_embedding)
        self.register_module("lm_head", own_head)
        if config.draft_vocab_size is not None:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
            self.set_draft_vocabulary(torch.arange(config.draft_vocab_size))
        self.register_state_dict_post_hook(_drop_borrowed)
        self.register_load_state_dict_post_hook(_excuse_borrowed)

    @property
    def num_draft_tokens(self) -> int:
        """Size of the vocabulary that the head scores."""
        return self.config.draft_vocab_size or self.config.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def attach(self, embedding: Float[Tensor, "v h"], head: Float[Tensor, "v h"]) -> None:
        """Borrow the target's embedding and head where the network has none of its own.

        They share the target's storage when dtype and device agree, and are copied otherwise; of the head
        a reduced draft vocabulary gathers its rows. Call it again after `set_draft_vocabulary`.
        """
        borrows = not (self.config.has_embedding and self.config.has_head)
        assert not borrows or embedding.shape[1] == head.shape[1] == self.config.hidden_size, "of another hidden size"
        device, dtype = self.norm.weight.device, self.dtype
        if not self.config.has_embedding:
            self.embed_tokens = _frozen_embedding(embedding.detach().to(device, dtype))
        if not self.config.has_head:
            rows = head.detach()
            if self.config.draft_vocab_size is not None:
                rows = rows[self.draft_vocabulary().to(rows.device)]
            self.lm_head = _frozen_linear(rows.to(device, dtype))

    def draft_vocabulary(self) -> Int64[Tensor, " w"]:
        """The target's id of every draft id."""
        return self.draft_to_target(torch.arange(self.num_draft_tokens, device=self.norm.weight.device))

    def set_draft_vocabulary(self, target_ids: Int64[Tensor, " w"]) -> None:
        """Let draft id i mean `target_ids[i]`; the ids must be distinct."""
        assert self.config.draft_vocab_size == len(target_ids), "the config fixes the vocabulary's size"
        target_ids = target_ids.to(self.d2t.device)
        self.d2t.copy_(target_ids - torch.arange(len(target_ids), device=self.d2t.device))
        self.t2d.zero_()[target_ids] = True

    def draft_to_target(self, ids: Int64[Tensor, "*b"]) -> Int64[Tensor, "*b"]:
        """The target's ids of draft ids (`d2t` holds offsets)."""
        return ids if self.config.draft_vocab_size is None else ids + self.d2t[ids]

    def target_to_draft(self, ids: Int64[Tensor, "*b"]) -> Int64[Tensor, "*b"]:
        """The draft ids of the target's ids; -1 where the draft vocabulary lacks the token."""
        if self.config.draft_vocab_size is None:
            return ids
        table = torch.full((self.config.vocab_size,), -1, device=ids.device)
        table[self.draft_vocabulary()] = torch.arange(self.num_draft_tokens, device=ids.device)
        return table[ids]

    def embed(self, tokens: Int64[Tensor, "*b s"]) -> Float[Tensor, "*b s h"]:
        assert self.embed_tokens is not None, "attach the target's embedding first"
        return self.embed_tokens(tokens)

    def draft_logits(self, hidden: Float[Tensor, "*b h"]) -> Float[Tensor, "*b w"]:
        assert self.lm_head is not None, "attach the target's head first"
        return self.lm_head(hidden)

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


def _frozen_embedding(weight: Float[Tensor, "v h"]) -> nn.Embedding:
    embedding = nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
    embedding.weight = nn.Parameter(weight, requires_grad=False)
    return embedding


def _frozen_linear(weight: Float[Tensor, "w h"]) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def _borrowed_prefixes(network: DFlashNetwork) -> tuple[str, ...]:
    owned = (network.config.has_embedding, network.config.has_head)
    return tuple(f"{name}." for name, owns in zip(_BORROWABLE, owned, strict=True) if not owns)


def _drop_borrowed(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    assert isinstance(module, DFlashNetwork)
    borrowed = tuple(prefix + name for name in _borrowed_prefixes(module))
    for name in [name for name in state if name.startswith(borrowed)] if borrowed else []:
        del state[name]


def _excuse_borrowed(module: nn.Module, incompatible: Any) -> None:
    """A checkpoint without the borrowed weights is complete."""
    assert isinstance(module, DFlashNetwork)
    borrowed = _borrowed_prefixes(module)
    missing = incompatible.missing_keys
    missing[:] = [name for name in missing if not (borrowed and name.startswith(borrowed))]
