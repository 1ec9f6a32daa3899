"""SpecBlock (2605.07243): blocks of dependent slots, unrolled as they will follow one another.

    position   i             i+1+m                    block 1 stands for a position that the target has read; block 2
    block 1    slots 0..K-1                           starts at a random slot m of it, with that slot's hidden state
    block 2                  slots 0..K-1             and the token that stands there in the text, and so on
    labels     i+2 .. i+1+K  i+3+m ..                 slot k of a block at i learns token i+2+k, by the distribution
                                                      that was recorded before it

The rows of all positions are there, for later ones see them; blocks that learn start at sampled positions.

Letters: b conversations, n tokens (padded), m sampled positions, M blocks after one another, K slots of a block,
T recorded tokens, C rank classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from paceline.learning.anchors import sample_anchors
from paceline.learning.conversation import Conversation
from paceline.learning.layout import lay_out_positions
from paceline.learning.losses import BlockLoss, SparseTarget, chunked_loss, mixed_target, valid_prefix_weights
from paceline.learning.specblock_loss import SpecBlockLossConfig
from paceline.models.attention import Causal
from paceline.models.layers import KeysValues
from paceline.models.specblock import NUM_TOP, SpecBlockNetwork, rank_statistics
from paceline.models.specblock_config import RANK_CLASSES, RANK_ENDS


@dataclass(frozen=True)
class SpecBlockBatch:
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

    def to(self, device: torch.device) -> SpecBlockBatch:
        """The same batch on a device."""
        return SpecBlockBatch(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})


def build_batch(
    conversations: Sequence[Conversation], num_slots: int, num_blocks: int, count: int, generator: torch.Generator
) -> SpecBlockBatch:
    """Sample `count` positions of each conversation, and the slots at which later blocks start."""
    sampled = [sample_anchors(len(c.tokens), c.response_start, count, generator) for c in conversations]
    anchors, valid = (torch.stack(parts) for parts in zip(*sampled, strict=True))
    slots = torch.randint(num_slots, (len(conversations), count, num_blocks - 1), generator=generator)
    return lay_out(conversations, anchors, valid, slots, num_slots)


def lay_out(
    conversations: Sequence[Conversation], anchors: Tensor, valid: Tensor, slots: Tensor, num_slots: int
) -> SpecBlockBatch:
    """The batch of given anchors Int64[b, m] and slots Int64[b, m, M - 1]; blocks that are not valid have no labels."""
    starts = anchors[..., None] + torch.cat([torch.zeros_like(anchors)[..., None], (1 + slots).cumsum(-1)], -1)
    laid = lay_out_positions(conversations, starts[..., None] + 1 + torch.arange(num_slots), valid)
    return SpecBlockBatch(laid.features, laid.tokens, anchors, slots, laid.labels, laid.top_ids, laid.top_log_probs)


class SpecBlockObjective(nn.Module):
    """The network and its loss as one module, which is what `accelerate` wraps for many devices."""

    draft_ids: Tensor

    def __init__(self, network: SpecBlockNetwork, draft_ids: Tensor, loss: SpecBlockLossConfig, chunk_blocks: int):
        super().__init__()
        self.network = network
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self._loss, self._chunk_blocks = loss, chunk_blocks

    def forward(self, batch: SpecBlockBatch) -> BlockLoss:
        """The draft loss over all supervised slots of the batch, and the rank loss beside it."""
        hidden = unrolled(self.network, batch).flatten(0, 2)
        target = self.target(batch)
        weights = valid_prefix_weights(self._loss.slot_decay, self._loss.valid_prefix)
        normed = self.network.norm(hidden)
        found = chunked_loss(normed, self.network.lm_head.weight, target, weights, self._chunk_blocks, NUM_TOP)
        if not self._loss.rank:
            return found
        assert found.seen is not None, "statistics were asked for"
        statistics = rank_statistics(found.seen.top, found.seen.entropy)
        classes = rank_classes(found.seen.rank)
        said = self.network.rank_logits(hidden, statistics)
        # as the tree will: a slot counts where those before it were right
        reached = valid_prefix_weights(1.0)(found.seen.entropy, found.seen.rank == 1) * (batch_labels(batch) >= 0)
        rank = rank_loss(said, classes, reached, self._loss)
        return BlockLoss(found.loss + self._loss.rank_share * rank, found.cross_entropy, found.accuracy, found.seen)

    def target(self, batch: SpecBlockBatch) -> SparseTarget:
        """What the batch's blocks should predict, blocks flattened to [b * m * M, K]."""
        labels = batch_labels(batch)
        ids, log_probs = batch.top_ids.flatten(0, 2), batch.top_log_probs.flatten(0, 2)
        return mixed_target(labels, ids, log_probs, labels >= 0, self.draft_ids, self._loss.soft)


def batch_labels(batch: SpecBlockBatch) -> Tensor:
    """Int64[b * m * M, K]"""
    return batch.labels.flatten(0, 2)


def unrolled(network: SpecBlockNetwork, batch: SpecBlockBatch) -> Tensor:
    """Float[b, m, M, K, H]: hidden states of every sampled position's blocks, before the last norm."""
    b, n = batch.tokens.shape
    size = network.config.num_slots
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


def _appending(kept: list[KeysValues]):  # type: ignore[no-untyped-def]  # a Store
    """A store that keeps keys and values in a list, layer by layer."""

    def store(index: int, keys: Tensor, values: Tensor) -> KeysValues:
        if index == len(kept):
            kept.append((keys, values))
        else:
            kept[index] = (torch.cat((kept[index][0], keys), 2), torch.cat((kept[index][1], values), 2))
        return kept[index]

    return store


def rank_classes(rank: Tensor) -> Tensor:
    """Int64: the bucket of each rank (from 1); what cannot be drafted (0) is beyond all."""
    ends = torch.tensor(RANK_ENDS, device=rank.device)
    return torch.where(rank > 0, torch.bucketize(rank, ends), RANK_CLASSES - 1)


def rank_loss(said: Tensor, classes: Tensor, counts: Tensor, config: SpecBlockLossConfig) -> Tensor:
    """Cross-entropy of the buckets, and what mistakes cost.

    said Float[n, K, C] scores; classes Int64[n, K]; counts Float[n, K], 0 where nothing is to be learnt. Rare buckets
    weigh more (one over the root of their share); a bucket's neighbours are right in part; a bucket below the true one
    loses the token and costs more than one above it, which wastes nodes.
    """
    ids = torch.arange(RANK_CLASSES, device=said.device)
    distance = ids - classes[..., None]
    smoothed = torch.where(distance == 0, 1 - config.smoothing, config.smoothing / 2 * (distance.abs() == 1))
    smoothed = smoothed / smoothed.sum(-1, keepdim=True)
    shares = torch.stack([(counts * (classes == c)).sum() for c in range(RANK_CLASSES)]) / counts.sum().clamp(min=1)
    balance = shares.clamp(min=0.01).rsqrt()[classes] * counts
    log_probs = log_softmax(said.float(), -1)
    cost = torch.where(distance < 0, config.under_cost, config.over_cost) * distance.abs()
    each = -(smoothed * log_probs).sum(-1) + (log_probs.exp() * cost).sum(-1)
    return (balance * each).sum() / balance.sum().clamp(min=1e-9)
