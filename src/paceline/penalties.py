"""What a request does to the target's logits before they are sampled, by the tokens that came before.

In this order: logit bias, repetition penalty, frequency and presence penalties, and, while fewer than `min_tokens` are
out, no end-of-text and no stop token. The repetition penalty counts prompt and answer and is that of the
Hugging Face logits processor (Keskar et al., arXiv 1909.05858); frequency and presence penalties count the answer
alone and are those of the OpenAI API.

A node of a draft tree has a prefix of its own: the answer so far, then the path to the node, the node itself included.
`edit_tree` counts once for the whole tree and mends what each node's path changes; `edit_one` is the same for one
prefix, said plainly, and what it is tested against.

Letters: m nodes of a pass (0 is the root, whose token is part of the answer), v vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from paceline.types import GenerationSettings


class TokenCounts:
    """How often each token occurred in a growing answer, and which ones the prompt or the answer has."""

    def __init__(self, prompt: Sequence[int], vocab_size: int, device: torch.device):
        self.answer = torch.zeros(vocab_size, device=device)
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.seen[torch.tensor(prompt, device=device)] = True
        self.num_tokens = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the answer."""
        added = torch.tensor(tokens, device=self.seen.device)
        self.answer.index_add_(0, added, torch.ones(len(tokens), device=added.device))
        self.seen[added] = True
        self.num_tokens += len(tokens)


def edit_one(
    logits: Float[Tensor, " v"],
    prompt: Sequence[int],
    answer: Sequence[int],
    settings: GenerationSettings,
    ends: Collection[int],
) -> Float[Tensor, " v"]:
    """The logits after one prefix, edited as the settings say; `ends` are the tokens that may end the answer."""
    logits = logits.to(torch.float32, copy=True)
    for token, bias in settings.logit_bias.items():
        logits[token] += bias
    for token in {*prompt, *answer}:
        factor = settings.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in Counter(answer).items():
        logits[token] -= settings.frequency_penalty * count + settings.presence_penalty
    if len(answer) < settings.min_tokens:
        logits[list(ends)] = -torch.inf
    return logits


def edit_tree(
    logits: Float[Tensor, "m v"],
    tokens: Int64[Tensor, " m"],
    visible: Bool[Tensor, "m m"],
    counts: TokenCounts,
    settings: GenerationSettings,
    ends: Collection[int],
) -> Float[Tensor, "m v"]:
    """The logits after every node of a tree, each edited by its own prefix; float32, a new tensor.

    `visible[i, j]` says that j is node i or one of its ancestors.
    """
    biased = logits.to(torch.float32, copy=True)
    if settings.logit_bias:
        biased[:, list(settings.logit_bias)] += biased.new_tensor(list(settings.logit_bias.values()))
    edited = _penalised(biased, counts.answer, counts.seen, settings)
    if settings.has_penalties and len(tokens) > 1:
        # Tokens of a node's path occur once more (or oftener) than in the answer so far: entries (node, token).
        path = visible.clone()
        path[:, 0] = False
        nodes, ancestors = path.nonzero(as_tuple=True)
        same = (tokens[:, None] == tokens).float()
        occurrences = (path.float() @ same)[nodes, ancestors]
        entries = nodes, tokens[ancestors]
        total = counts.answer[entries[1]] + occurrences
        edited[entries] = _penalised(biased[entries], total, torch.ones_like(total, dtype=torch.bool), settings)
    if counts.num_tokens < settings.min_tokens and ends:
        depths = visible.sum(-1) - 1
        early = (counts.num_tokens + depths < settings.min_tokens).nonzero()
        edited[early, torch.tensor(list(ends), device=edited.device)] = -torch.inf
    return edited


def _penalised(
    logits: Float[Tensor, "*m v"], answer: Float[Tensor, " v"], seen: Bool[Tensor, " v"], settings: GenerationSettings
) -> Float[Tensor, "*m v"]:
    if settings.repetition_penalty != 1.0:
        factor = settings.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    if settings.frequency_penalty or settings.presence_penalty:
        logits = logits - settings.frequency_penalty * answer - settings.presence_penalty * (answer > 0)
    return logits
