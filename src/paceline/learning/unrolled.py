"""Blocks unrolled as they will follow one another, over whole texts: what SpecBlock and EAGLE-3 learn from.

    position   i             i+1+m                    block 1 stands for a position that the target has read; block 2
    block 1    slots 0..K-1                           starts at a random slot m of it, with that slot's hidden state
    block 2                  slots 0..K-1             and the token that stands there in the text, and so on
    labels     i+2 .. i+1+K  i+3+m ..                 slot k of a block at i learns token i+2+k, by the distribution
                                                      that was recorded before it

The rows of all positions are there, for later ones see them; blocks that learn start at sampled positions.

Letters: b conversations, n tokens (padded), m sampled positions, M blocks after one another, K slots of a block,
T recorded tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from paceline.learning.anchors import sample_anchors
from paceline.learning.conversation import Conversation
from paceline.learning.layout import lay_out_positions
from paceline.models.attention import Causal
from paceline.models.layers import KeysValues
from paceline.models.unrolled import Store, UnrolledNetwork


@dataclass(frozen=True)
class UnrolledBatch:
    """What one step trains on."""

    features: Tensor
    """Float32[b, n, F], zeros in the padding"""
    tokens: Tensor
    """Int64[b, n], zeros in the padding"""
    anchors: Tensor
    """Int64[b, m]: the tokens after the sampled positions"""
    slots: Tensor
    """Int64[b, m, M - 1]: the slot of each block at which the next one starts"""
    labels: Tensor
    """Int64[b, m, M, K] target ids, -1 past the end and in blocks that only fill up"""
    top_ids: Tensor
    """Int64[b, m, M, K, T]"""
    top_log_probs: Tensor
    """Float32[b, m, M, K, T]"""

    def to(self, device: torch.device) -> UnrolledBatch:
        """The same batch on a device."""
        return UnrolledBatch(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})


def build_batch(
    conversations: Sequence[Conversation], num_slots: int, num_blocks: int, count: int, generator: torch.Generator
) -> UnrolledBatch:
    """Sample `count` positions of each conversation, and the slots at which later blocks start."""
    sampled = [sample_anchors(len(c.tokens), c.response_start, count, generator) for c in conversations]
    anchors, valid = (torch.stack(parts) for parts in zip(*sampled, strict=True))
    slots = torch.randint(num_slots, (len(conversations), count, num_blocks - 1), generator=generator)
    return lay_out(conversations, anchors, valid, slots, num_slots)


def lay_out(
    conversations: Sequence[Conversation], anchors: Tensor, valid: Tensor, slots: Tensor, num_slots: int
) -> UnrolledBatch:
    """The batch of given anchors Int64[b, m] and slots Int64[b, m, M - 1]; blocks that are not valid have no labels."""
    starts = anchors[..., None] + torch.cat([torch.zeros_like(anchors)[..., None], (1 + slots).cumsum(-1)], -1)
    laid = lay_out_positions(conversations, starts[..., None] + 1 + torch.arange(num_slots), valid)
    return UnrolledBatch(laid.features, laid.tokens, anchors, slots, laid.labels, laid.top_ids, laid.top_log_probs)


def unrolled(network: UnrolledNetwork, batch: UnrolledBatch) -> Tensor:
    """Float[b, m, M, K, H]: hidden states of every sampled position's blocks, before the last norm."""
    b, n = batch.tokens.shape
    size = network.num_slots
    kept: list[KeysValues] = []
    positions = torch.arange(n - 1, device=batch.tokens.device).expand(b, -1)
    places = batch.anchors - 1
    last = places[..., None] * size + torch.arange(size, device=batch.tokens.device)
    seen = torch.arange((n - 1) * size, device=batch.tokens.device) <= last[..., None]
    blocks = network.blocks(
        batch.features[:, :-1], batch.tokens[:, 1:], positions, _appending(kept), Causal.CAUSAL, places, seen
    )
    found = [blocks.hidden]
    row = torch.arange(b, device=batch.tokens.device)[:, None]
    parents = torch.arange(batch.anchors.shape[1], device=batch.tokens.device).expand(b, -1)
    for slots in batch.slots.unbind(-1):
        places = (blocks.positions + 2 + slots).clamp(max=n - 1)
        blocks = network.later(blocks, parents, slots, batch.tokens[row, places], _appending(kept))
        found.append(blocks.hidden)
    return torch.stack(found, 2)


def _appending(kept: list[KeysValues]) -> Store:
    """A store that keeps keys and values in a list, layer by layer."""

    def store(index: int, keys: Tensor, values: Tensor) -> KeysValues:
        if index == len(kept):
            kept.append((keys, values))
        else:
            kept[index] = (torch.cat((kept[index][0], keys), 2), torch.cat((kept[index][1], values), 2))
        return kept[index]

    return store
