"""Acceptance length on held-out conversations, without running the target.

Where a response is the target's greedy answer, the true token at every position is what verification would
pick, so a recorded conversation holds everything that decides how many drafted tokens are kept: draft at every
anchor, count the kept tokens, and jump through the response as the decoding loop would
(anchor <- anchor + kept + 1). The result equals greedy decoding's acceptance length, up to floating point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.models.dflash import DFlashNetwork
from paceline.train.data import ConversationDataset
from paceline.train.objectives.dflash import DFlashBatch, lay_out
from paceline.train.shards import Conversation
from paceline.tree import DraftTree, Growth, Marginals


class HeldOutAcceptance(Protocol):
    """Whatever measures a drafter during training; the real decoding loop can take the probe's place."""

    def __call__(self, network: DFlashNetwork) -> Mapping[str, float]:
        """Acceptance length (tokens per round, bonus included) by the name of the way to draft."""
        ...


@dataclass(frozen=True)
class DraftingMethod:
    """A growth and its node budget, under the name that the log shows."""

    name: str
    growth: Growth
    budget: int


@dataclass(frozen=True)
class TeacherForcedAcceptance:
    """The probe over recorded conversations, `batch_size` conversations by `num_anchors` anchors at a time."""

    conversations: ConversationDataset
    block_size: int
    methods: Sequence[DraftingMethod]
    batch_size: int = 8
    num_anchors: int = 48

    @torch.no_grad()
    def __call__(self, network: DFlashNetwork) -> dict[str, float]:
        """Acceptance length per method over all rounds of all conversations."""
        tokens, rounds = 0, dict.fromkeys((m.name for m in self.methods), 0)
        for start in range(0, len(self.conversations), self.batch_size):
            indices = range(start, min(start + self.batch_size, len(self.conversations)))
            batch = [self.conversations[i] for i in indices]
            tokens += sum(max(len(c.tokens) - 1 - c.response_start, 0) for c in batch)
            for name, kept in self._kept_per_anchor(network, batch).items():
                rounds[name] += sum(count_rounds(of_conversation) for of_conversation in kept)
        return {name: tokens / max(count, 1) for name, count in rounds.items()}

    def _kept_per_anchor(self, network: DFlashNetwork, batch: list[Conversation]) -> dict[str, list[list[int]]]:
        """Drafted tokens that would be kept, by method, conversation and anchor (all response positions)."""
        kept: dict[str, list[list[int]]] = {m.name: [[] for _ in batch] for m in self.methods}
        responses = torch.tensor([c.response_start for c in batch])
        counts = torch.tensor([len(c.tokens) - 1 for c in batch]) - responses
        for first in range(0, int(counts.max()), self.num_anchors):
            offsets = torch.arange(first, first + self.num_anchors)[None]
            valid = offsets < counts[:, None]
            anchors = responses[:, None] + torch.where(valid, offsets, 0)
            laid_out = lay_out(batch, anchors, valid, self.block_size)
            for row, marginals, labels in self._drafts(network, laid_out, valid):
                for method in self.methods:
                    tree = method.growth(marginals, method.budget)
                    kept[method.name][row].append(kept_tokens(tree, labels))
        return kept

    def _drafts(
        self, network: DFlashNetwork, batch: DFlashBatch, valid: Tensor
    ) -> list[tuple[int, Marginals, list[int]]]:
        """(conversation, marginals, true continuation) of each valid anchor, in order."""
        device = next(network.parameters()).device
        placed = batch.to(device)
        hidden = network.training_forward(placed.features, placed.tokens, placed.anchors, self.block_size)
        width = max(method.budget for method in self.methods)
        where = valid.nonzero()
        chosen = hidden[where[:, 0], where[:, 1]]
        found = [_top_marginals(network, chunk, width) for chunk in chosen.split(64)]
        tokens = torch.cat([t for t, _ in found]).cpu()
        log_probs = torch.cat([p for _, p in found]).cpu()
        labels = batch.labels[where[:, 0], where[:, 1]].tolist()
        rows = where[:, 0].tolist()
        return [(row, Marginals(tokens[i], log_probs[i]), labels[i]) for i, row in enumerate(rows)]


def _top_marginals(network: DFlashNetwork, hidden: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Target ids and log-probs of the `width` likeliest tokens per position of `hidden`."""
    logits = network.draft_logits(hidden).float()
    best, ids = logits.topk(min(width, logits.shape[-1]), dim=-1)
    log_probs = (best - logits.logsumexp(-1, keepdim=True)).clamp(max=0)
    return network.draft_to_target(ids), log_probs


def kept_tokens(tree: DraftTree, labels: Sequence[int]) -> int:
    """Drafted tokens on the tree's path along `labels` (the true continuation; -1 past its end)."""
    node, depth = 0, 0
    for index, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True), start=1):
        if depth < len(labels) and parent == node and token == labels[depth]:
            node, depth = index, depth + 1
    return depth


def count_rounds(kept: Sequence[int]) -> int:
    """Rounds that decoding takes over a response, given what each of its anchors would keep."""
    anchor = rounds = 0
    while anchor < len(kept):
        anchor, rounds = anchor + kept[anchor] + 1, rounds + 1
    return rounds
