"""Losses of a block of drafted positions, without ever holding all their logits.

Letters: n blocks, L positions per block, H hidden size, v draft vocabulary, S sparse target entries.

Hard labels, the target's recorded top tokens, and a mixture of both are one thing: a *sparse target*, a few
(id, weight) pairs whose weights sum to one. Cross-entropy against it is `logsumexp(z) - sum_s w_s z_s`, and
its gradient `softmax(z) - w`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PositionWeights = Callable[[Tensor, Tensor], Tensor]
"""(confidence Float[n, L] in the label, whether the label is the argmax Bool[n, L]) -> weight Float[n, L]; called
without gradients."""


@dataclass(frozen=True)
class SparseTarget:
    """What each position should predict."""

    ids: Tensor
    """Int64[n, L, S]: draft ids; entries of weight zero hold any valid id"""
    weights: Tensor
    """Float[n, L, S]: sums to one over S, or all zero where nothing is supervised"""
    labels: Tensor
    """Int64[n, L]: draft id of the true token, -1 where there is none or it cannot be drafted"""

    @property
    def supervised(self) -> Tensor:
        """Bool[n, L]: positions with anything to learn."""
        return self.weights.sum(-1) > 0


def decayed_weights(gamma: float) -> PositionWeights:
    """`exp(-(k-1)/gamma)` for k = 1..L (DFlash, 2602.06036: an early mistake costs the rest of the block)."""

    def weights(confidence: Tensor, correct: Tensor) -> Tensor:
        steps = torch.arange(confidence.shape[-1], device=confidence.device, dtype=confidence.dtype)
        return torch.exp(-steps / gamma).expand_as(confidence)

    return weights


def default_gamma(block_size: int) -> float:
    """The decay that the DFlash paper uses for the nearest of its block sizes (8, 10, 16)."""
    published = {8: 4.0, 10: 5.0, 16: 7.0}
    return published[min(published, key=lambda size: abs(size - block_size))]


def d_pace_weights(smoothing: float) -> PositionWeights:
    """D-PACE (2605.18810): the suffix sum of the prefix products of smoothed confidence.

    With confidence c_i in the true token, the chain's expected accepted length is sum_j prod_{i<=j} c_i; its
    derivative by log c_k is sum_{j>=k} prod_{i<=j} c_i. Smoothing `s + (1 - s) c` keeps late positions alive
    while the drafter is still bad.
    """

    def weights(confidence: Tensor, correct: Tensor) -> Tensor:
        prefix = torch.cumprod(smoothing + (1 - smoothing) * confidence, dim=-1)
        return prefix.flip(-1).cumsum(-1).flip(-1)

    return weights


def valid_prefix_weights(decay: float, only_valid: bool = True) -> PositionWeights:
    """`decay^k` for slots k = 0..L-1, where all slots before were right (SpecBlock, 2605.07243: behind a mistake
    nothing is verified). `only_valid` False leaves the prefix mask out."""

    def weights(confidence: Tensor, correct: Tensor) -> Tensor:
        slots = torch.arange(confidence.shape[-1], device=confidence.device, dtype=confidence.dtype)
        decayed = (decay**slots).expand_as(confidence)
        if not only_valid:
            return decayed
        before = torch.cat([torch.ones_like(correct[..., :1]), correct[..., :-1]], -1)
        return decayed * before.cumprod(-1)

    return weights


def mixed_target(
    labels: Tensor, top_ids: Tensor, top_log_probs: Tensor, recorded: Tensor, draft_ids: Tensor, soft: float
) -> SparseTarget:
    """(1 - soft) of the true token plus `soft` of the target's recorded distribution.

    labels Int64[n, L] target ids, -1 past the end; top_* [n, L, K] in target ids; recorded Bool[n, L]: whether a
    distribution was recorded; draft_ids Int64[V], -1 for ids that cannot be drafted.

    The recorded distribution is renormalised over those of its K tokens that can be drafted; the mass of all
    other tokens (the tail beyond K, tokens outside the draft vocabulary) is dropped, not spread. Where one of
    the two parts is missing the other takes all the weight.
    """
    draft_labels = torch.where(labels >= 0, draft_ids[labels.clamp(min=0)], -1)
    draft_tops = draft_ids[top_ids]
    usable = (draft_tops >= 0) & recorded[..., None]
    mass = torch.where(usable, top_log_probs.float().exp(), 0.0)
    total = mass.sum(-1, keepdim=True)
    has_hard, has_soft = draft_labels >= 0, (total[..., 0] > 0) & (labels >= 0)
    soft_part = torch.where(has_soft, torch.where(has_hard, soft, float(soft > 0)), 0.0)
    hard_part = torch.where(has_hard, 1 - soft_part, 0.0)
    ids = torch.cat([draft_labels[..., None], draft_tops], -1).clamp(min=0)
    weights = torch.cat([hard_part[..., None], mass / total.clamp(min=1e-20) * soft_part[..., None]], -1)
    return SparseTarget(ids, weights, draft_labels)


@dataclass(frozen=True)
class BlockLoss:
    """The loss of a batch and what is worth logging about it (per position, over supervised positions)."""

    loss: Tensor
    """Float[]: weighted mean of the cross-entropy"""
    cross_entropy: Tensor
    """Float[L]: unweighted mean at each position"""
    accuracy: Tensor
    """Float[L]: how often the argmax is the true token"""
    seen: SlotStatistics | None = None
    """What was asked for beside."""


@dataclass(frozen=True)
class SlotStatistics:
    """What a drafted position's distribution looks like; without gradients."""

    top: Tensor
    """Float32[n, L, T]: its highest log-probs"""
    entropy: Tensor
    """Float32[n, L]: nats"""
    rank: Tensor
    """Int64[n, L]: place of the true token, from 1; 0 where there is none or it cannot be drafted"""


def chunked_loss(
    hidden: Tensor,
    head: Tensor,
    target: SparseTarget,
    position_weights: PositionWeights,
    chunk_blocks: int,
    num_top: int = 0,
) -> BlockLoss:
    """Weighted cross-entropy of `hidden @ head.T` against `target`, `chunk_blocks` blocks at a time.

    hidden Float[n, L, H]; head Float[v, H]. The gradients are computed in the same sweep as the loss, so the
    logits of one chunk are the most that ever exists, and the head is multiplied twice (three times if it
    learns), never recomputed. With `num_top` (T), statistics of the distributions come along.
    """
    loss, cross_entropy, accuracy, *seen = _ChunkedLoss.apply(
        hidden, head, target, position_weights, chunk_blocks, num_top
    )
    return BlockLoss(loss, cross_entropy, accuracy, SlotStatistics(*seen) if num_top else None)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        target: SparseTarget,
        position_weights: PositionWeights,
        chunk_blocks: int,
        num_top: int,
    ) -> tuple[Tensor, ...]:
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        positions = hidden.shape[1]
        sums = hidden.new_zeros(3, positions, dtype=torch.float32)
        total_loss = hidden.new_zeros((), dtype=torch.float32)
        total_weight = hidden.new_zeros((), dtype=torch.float32)
        seen: list[tuple[Tensor, Tensor, Tensor]] = []
        for start in range(0, len(hidden), chunk_blocks):
            rows = slice(start, start + chunk_blocks)
            h, ids, mass = hidden[rows], target.ids[rows], target.weights[rows]
            labels, supervised = target.labels[rows], target.supervised[rows].float()
            logits = (h @ head.T).float()
            best = logits.argmax(-1)
            # From here `logits` turns into probabilities, then into its own gradient, in place.
            picked = logits.gather(-1, ids)
            of_label = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
            peak = logits.gather(-1, best[..., None])
            if num_top:
                top = logits.topk(num_top, -1).values
                ahead = (logits > of_label[..., None]).sum(-1)
            probabilities = logits.sub_(peak).exp_()
            normaliser = probabilities.sum(-1, keepdim=True)
            log_normaliser = (normaliser.log() + peak)[..., 0]
            if num_top:
                spread = torch.special.entr(probabilities).sum(-1, keepdim=True) / normaliser + normaliser.log()
                rank = torch.where(labels >= 0, 1 + ahead, 0)
                seen.append((top - log_normaliser[..., None], spread[..., 0], rank))
            entropy = (mass * (log_normaliser[..., None] - picked)).sum(-1)
            confidence = torch.where(labels >= 0, (of_label - log_normaliser).exp(), 0.0)
            weights = position_weights(confidence, best == labels) * supervised
            gradient = probabilities.mul_((weights[..., None] * mass.sum(-1, keepdim=True)) / normaliser)
            gradient.scatter_add_(-1, ids, -(weights[..., None] * mass))
            gradient = gradient.to(head.dtype)
            grad_hidden[rows] = gradient @ head
            if grad_head is not None:
                grad_head.addmm_(gradient.flatten(0, 1).T, h.flatten(0, 1))
            total_loss += (weights * entropy).sum()
            total_weight += weights.sum()
            sums += torch.stack([(entropy * supervised).sum(0), (best == labels).float().sum(0), supervised.sum(0)])
        total_weight = total_weight.clamp(min=1e-9)
        ctx.save_for_backward(
            grad_hidden.div_(total_weight), grad_head / total_weight if grad_head is not None else None
        )
        counts = sums[2].clamp(min=1)
        cross_entropy, accuracy = sums[0] / counts, sums[1] / counts
        statistics = [torch.cat(parts) for parts in zip(*seen, strict=True)]
        ctx.mark_non_differentiable(cross_entropy, accuracy, *statistics)
        return total_loss / total_weight, cross_entropy, accuracy, *statistics

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grad_loss, None if grad_head is None else grad_head * grad_loss, None, None, None, None
