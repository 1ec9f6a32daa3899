"""DFlash (2602.06036): blocks of masks after sampled anchors, all of a conversation's in one pass.

Letters: b conversations, n tokens (padded), m anchors, L = block_size - 1 drafted positions, K recorded tokens.

    tokens     ... a   a+1  a+2  ...  a+L
    block          a   mask mask ...  mask        input rows 0..L; context: features strictly before a
    labels             a+1  a+2  ...  a+L         row k predicts token a+k ...
    soft labels        top[a] top[a+1] ...        ... whose distribution was recorded at row a+k-1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from paceline.learning.anchors import sample_anchors
from paceline.learning.conversation import Conversation
from paceline.learning.layout import lay_out_positions
from paceline.learning.losses import BlockLoss, PositionWeights, SparseTarget, chunked_loss, mixed_target
from paceline.models.dflash import DFlashNetwork
from paceline.models.heads import HeadsNetwork


@dataclass(frozen=True)
class DFlashBatch:
    """What one step trains on."""

    features: Tensor
    """Float32[b, n, F], zeros in the padding"""
    tokens: Tensor
    """Int64[b, n], zeros in the padding"""
    anchors: Tensor
    """Int64[b, m]"""
    labels: Tensor
    """Int64[b, m, L] target ids, -1 past the end and in blocks that only fill up"""
    top_ids: Tensor
    """Int64[b, m, L, K]"""
    top_log_probs: Tensor
    """Float32[b, m, L, K]"""

    def to(self, device: torch.device) -> DFlashBatch:
        """The same batch on a device."""
        return DFlashBatch(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})


def build_batch(
    conversations: Sequence[Conversation], block_size: int, num_anchors: int, generator: torch.Generator
) -> DFlashBatch:
    """Sample anchors and lay out their blocks."""
    sampled = [sample_anchors(len(c.tokens), c.response_start, num_anchors, generator) for c in conversations]
    anchors, valid = (torch.stack(parts) for parts in zip(*sampled, strict=True))
    return lay_out(conversations, anchors, valid, block_size)


def lay_out(conversations: Sequence[Conversation], anchors: Tensor, valid: Tensor, block_size: int) -> DFlashBatch:
    """The batch of given anchors Int64[b, m]; blocks that are not valid (Bool[b, m]) have no labels."""
    laid = lay_out_positions(conversations, anchors[..., None] + torch.arange(1, block_size), valid)
    return DFlashBatch(laid.features, laid.tokens, anchors, laid.labels, laid.top_ids, laid.top_log_probs)


class DFlashObjective(nn.Module):
    """The network and its loss as one module, which is what `accelerate` wraps for many devices. Parallel heads learn
    the same: all tokens after an anchor, each by itself."""

    draft_ids: Tensor

    def __init__(
        self,
        network: DFlashNetwork | HeadsNetwork,
        draft_ids: Tensor,
        position_weights: PositionWeights,
        soft: float,
        chunk_blocks: int,
    ) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self._position_weights = position_weights
        self._soft = soft
        self._chunk_blocks = chunk_blocks

    def forward(self, batch: DFlashBatch) -> BlockLoss:
        """Loss over all supervised positions of the batch."""
        block_size = batch.labels.shape[-1] + 1
        hidden = self.network.training_forward(batch.features, batch.tokens, batch.anchors, block_size)
        target = self.target(batch)
        return chunked_loss(
            hidden.flatten(0, 1), self.network.lm_head.weight, target, self._position_weights, self._chunk_blocks
        )

    def target(self, batch: DFlashBatch) -> SparseTarget:
        """What the batch's blocks should predict, blocks flattened to [b * m, L]."""
        recorded = batch.labels >= 0
        target = mixed_target(batch.labels, batch.top_ids, batch.top_log_probs, recorded, self.draft_ids, self._soft)
        return SparseTarget(target.ids.flatten(0, 1), target.weights.flatten(0, 1), target.labels.flatten(0, 1))
