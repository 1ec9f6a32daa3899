"""Conversations side by side, and what is to be learned at positions of them: the part of a batch that all share.

Letters: b conversations, n tokens (padded), K recorded tokens; `*` any shape of wanted positions, its first axis m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.learning.conversation import Conversation


@dataclass(frozen=True)
class Layout:
    """What a batch of any drafter has."""

    features: Tensor
    """Float32[b, n, F], zeros in the padding"""
    tokens: Tensor
    """Int64[b, n], zeros in the padding"""
    labels: Tensor
    """Int64[b, *] target ids, -1 past the end and in blocks that only fill up"""
    top_ids: Tensor
    """Int64[b, *, K]: the target's likeliest tokens there, recorded at the row before"""
    top_log_probs: Tensor
    """Float32[b, *, K]"""


def lay_out_positions(conversations: Sequence[Conversation], wanted: Tensor, valid: Tensor) -> Layout:
    """`wanted` Int64[b, m, ...] are positions to predict; where `valid` Bool[b, m] is False, they have no labels."""
    b, longest = len(conversations), max(len(c.tokens) for c in conversations)
    features = torch.zeros(b, longest, conversations[0].features.shape[1])
    tokens = torch.zeros(b, longest, dtype=torch.long)
    labels, top_ids, top_log_probs = [], [], []
    for row, conversation in enumerate(conversations):
        length, places = len(conversation.tokens), wanted[row]
        features[row, :length] = conversation.features
        tokens[row, :length] = conversation.tokens
        inside = (places < length) & valid[row].view(-1, *[1] * (places.dim() - 1))
        labels.append(torch.where(inside, tokens[row][places.clamp(max=length - 1)], -1))
        before = (places - 1).clamp(max=length - 1)
        top_ids.append(conversation.top_ids[before])
        top_log_probs.append(conversation.top_log_probs[before])
    return Layout(
        features, tokens, torch.stack(labels), torch.stack(top_ids).long(), torch.stack(top_log_probs).float()
    )
