"""What an EAGLE-3 drafter (2503.01840) learns: the target's distributions along the text, from its own states.

From every sampled position it takes some steps as it will when it drafts: the first from the target's features, the
others from what it gave itself (training-time test).

Letters: b conversations, m sampled positions, M steps.
"""

from __future__ import annotations

from torch import Tensor, nn

from paceline.learning.eagle3_loss import Eagle3LossConfig
from paceline.learning.losses import BlockLoss, SparseTarget, chunked_loss, mixed_target, valid_prefix_weights
from paceline.learning.unrolled import UnrolledBatch, unrolled
from paceline.models.eagle3 import Eagle3Network


class Eagle3Objective(nn.Module):
    """The network and its loss as one module, which is what `accelerate` wraps for many devices."""

    draft_ids: Tensor

    def __init__(self, network: Eagle3Network, draft_ids: Tensor, loss: Eagle3LossConfig, chunk_blocks: int):
        super().__init__()
        self.network = network
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self._loss, self._chunk_blocks = loss, chunk_blocks

    def forward(self, batch: UnrolledBatch) -> BlockLoss:
        """The loss over all steps from the batch's positions."""
        normed = self.network.norm(unrolled(self.network, batch)[..., 0, :].flatten(0, 1))
        weights = valid_prefix_weights(self._loss.step_decay, only_valid=False)
        return chunked_loss(normed, self.network.lm_head.weight, self.target(batch), weights, self._chunk_blocks)

    def target(self, batch: UnrolledBatch) -> SparseTarget:
        """What the steps should predict: [b * m, M]."""
        labels = batch.labels[..., 0].flatten(0, 1)
        ids, log_probs = batch.top_ids[..., 0, :].flatten(0, 1), batch.top_log_probs[..., 0, :].flatten(0, 1)
        return mixed_target(labels, ids, log_probs, labels >= 0, self.draft_ids, self._loss.soft)
