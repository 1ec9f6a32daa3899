"""The reduced draft vocabulary: the tokens that the target's responses are made of.

On a small target the head is most of a drafter's work, and most of its rows are never needed. Draft id i
stands for target id `i + d2t[i]` (the field's convention: `d2t` holds offsets).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.train.data import ConversationDataset


@dataclass(frozen=True)
class DraftVocabulary:
    """The two maps between draft ids and target ids. Draft ids are in the order of target ids."""

    d2t: Tensor
    """Int64[v]: target id = draft id + d2t[draft id]"""
    t2d: Tensor
    """Bool[V]: whether the target id can be drafted"""

    def __len__(self) -> int:
        return len(self.d2t)

    def target_ids(self) -> Tensor:
        """Int64[v]: the target id of each draft id, ascending."""
        return torch.arange(len(self.d2t)) + self.d2t

    def draft_ids(self) -> Tensor:
        """Int64[V]: the draft id of each target id, -1 where it cannot be drafted."""
        return torch.where(self.t2d, torch.cumsum(self.t2d.long(), 0) - 1, -1)


def count_response_tokens(dataset: ConversationDataset, vocab_size: int) -> Tensor:
    """Int64[V]: how often each token occurs in the responses."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for index in range(len(dataset)):
        conversation = dataset[index]
        counts += torch.bincount(conversation.tokens[conversation.response_start :].long(), minlength=vocab_size)
    return counts


def choose_vocabulary(counts: Tensor, size: int, always: Iterable[int] = ()) -> DraftVocabulary:
    """The `size` most frequent tokens of `counts` (ties: lowest id) and `always` (the end-of-text ids) among them.

    Tokens that never occur fill up to `size`, lowest id first, where fewer than `size` occur.
    """
    ranked = counts.clone()
    ranked[list(always)] = counts.max() + 1
    kept = torch.sort(ranked, descending=True, stable=True).indices[:size].sort().values
    t2d = torch.zeros(len(counts), dtype=torch.bool)
    t2d[kept] = True
    return DraftVocabulary(d2t=kept - torch.arange(len(kept)), t2d=t2d)
