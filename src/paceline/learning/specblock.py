"""What a SpecBlock drafter (2605.07243) learns: the target's distribution at slots that can be reached, and where in
its own the target's token will stand.

Letters: b conversations, m sampled positions, M blocks after one another, K slots of a block, n blocks of all, C rank
classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from paceline.learning.losses import BlockLoss, SparseTarget, chunked_loss, mixed_target, valid_prefix_weights
from paceline.learning.specblock_loss import SpecBlockLossConfig
from paceline.learning.unrolled import UnrolledBatch, unrolled
from paceline.models.specblock import NUM_TOP, SpecBlockNetwork, rank_statistics
from paceline.models.specblock_config import RANK_CLASSES, RANK_ENDS


class SpecBlockObjective(nn.Module):
    """The network and its loss as one module, which is what `accelerate` wraps for many devices."""

    draft_ids: Tensor

    def __init__(self, network: SpecBlockNetwork, draft_ids: Tensor, loss: SpecBlockLossConfig, chunk_blocks: int):
        super().__init__()
        self.network = network
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self._loss, self._chunk_blocks = loss, chunk_blocks

    def forward(self, batch: UnrolledBatch) -> BlockLoss:
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

    def target(self, batch: UnrolledBatch) -> SparseTarget:
        """What the batch's blocks should predict, blocks flattened to [b * m * M, K]."""
        labels = batch_labels(batch)
        ids, log_probs = batch.top_ids.flatten(0, 2), batch.top_log_probs.flatten(0, 2)
        return mixed_target(labels, ids, log_probs, labels >= 0, self.draft_ids, self._loss.soft)


def batch_labels(batch: UnrolledBatch) -> Tensor:
    """Int64[b * m * M, K]"""
    return batch.labels.flatten(0, 2)


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
