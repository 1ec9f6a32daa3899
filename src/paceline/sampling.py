"""From logits to the target's token: temperature and what follows it, and noise that depends on (seed, position).

At temperature > 0 the token at sequence position t is argmax_v(log p(v) + g_t(v)), where g_t is the noise of the
request's seed at t. METHODS section 1.

Letters: r rows (a sequence's node each), v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from paceline.noise import gumbel_argmax, gumbel_noise
from paceline.types import GenerationSettings


def transformed_log_probs(logits: Float[Tensor, "r v"], settings: Sequence[GenerationSettings]) -> Float[Tensor, "r v"]:
    """log p of each row after temperature, top-k, top-p and min-p, in this order; excluded tokens are -inf.

    Every row must have a temperature above 0. Ties at the k-th logit are all kept.
    """
    return _transformed(logits, settings).log_softmax(-1)


def _transformed(logits: Float[Tensor, "r v"], settings: Sequence[GenerationSettings]) -> Float[Tensor, "r v"]:
    """log p of each row but for a constant of the row."""

    def column(values: list[float]) -> Tensor:
        return logits.new_tensor(values)[:, None]

    scores = logits / column([s.temperature for s in settings])
    if any(s.top_k for s in settings):
        scores = scores.masked_fill(_below_top_k(scores, [s.top_k for s in settings]), -torch.inf)
    if any(s.top_p < 1.0 for s in settings):
        scores = scores.masked_fill(_outside_top_p(scores, column([s.top_p for s in settings])), -torch.inf)
    if any(s.min_p > 0.0 for s in settings):
        probs = scores.softmax(-1)
        floor = column([s.min_p for s in settings]) * probs.amax(-1, keepdim=True)
        scores = scores.masked_fill(probs < floor, -torch.inf)
    return scores


def log_probs(logits: Float[Tensor, "r v"], settings: Sequence[GenerationSettings]) -> Float[Tensor, "r v"]:
    """log p of each row: after every transform at a temperature above 0, plainly of the logits at 0."""
    greedy = torch.tensor([s.temperature == 0.0 for s in settings], device=logits.device)
    plain = logits.float().log_softmax(-1)
    if bool(greedy.all()):
        return plain
    sampled = [i for i, s in enumerate(settings) if s.temperature > 0.0]
    plain[sampled] = transformed_log_probs(logits[sampled].float(), [settings[i] for i in sampled])
    return plain


def _below_top_k(scores: Float[Tensor, "r v"], top_k: list[int]) -> Bool[Tensor, "r v"]:
    vocabulary = scores.shape[-1]
    ranks = torch.tensor([min(k or vocabulary, vocabulary) for k in top_k], device=scores.device)
    kth = scores.topk(int(ranks.max())).values.gather(1, ranks[:, None] - 1)
    return scores < kth


def _outside_top_p(scores: Float[Tensor, "r v"], top_p: Float[Tensor, "r 1"]) -> Bool[Tensor, "r v"]:
    """Tokens outside the smallest set of likeliest tokens whose probability reaches top_p."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(-1)
    # Off (top_p = 1) must stay off: rounding can carry a running sum to 1 before the last token.
    outside = (probs.cumsum(-1) - probs >= top_p) & (top_p < 1.0)
    outside[:, 0] = False
    return torch.empty_like(outside).scatter_(1, order, outside)


def target_tokens(
    logits: Float[Tensor, "r v"],
    positions: Int64[Tensor, " r"],
    settings: Sequence[GenerationSettings],
) -> Int64[Tensor, " r"]:
    """The target's token of each row, `positions[i]` being the sequence position that row i's token will take."""
    sampled = [i for i, s in enumerate(settings) if s.temperature > 0.0]
    if not sampled:
        return logits.argmax(-1)
    if len(sampled) == len(settings):
        return gumbel_argmax(*_scores(logits, positions, settings))
    tokens = logits.argmax(-1)
    rows = torch.tensor(sampled, device=logits.device)
    tokens[rows] = gumbel_argmax(*_scores(logits[rows], positions[rows], [settings[i] for i in sampled]))
    return tokens


def top_two_gap(logits: Float[Tensor, " v"], position: int, settings: GenerationSettings) -> float:
    """How far the second score is below the best one, of the scores whose argmax is the target's token."""
    if settings.temperature > 0.0:
        given, seeds, positions = _scores(logits[None], torch.tensor([position], device=logits.device), [settings])
        noise = gumbel_noise(seeds, positions, len(logits))
        scores = (given.to(noise) + noise)[0]
    else:
        scores = logits.float()
    best, second = scores.topk(2).values.tolist()
    return float(best - second)


def _scores(
    logits: Float[Tensor, "r v"], positions: Int64[Tensor, " r"], settings: Sequence[GenerationSettings]
) -> tuple[Float[Tensor, "r v"], Int64[Tensor, " r"], Int64[Tensor, " r"]]:
    """What each row's noise is added to, with its seeds and positions."""
    seeds = torch.tensor([s.seed for s in settings], device=logits.device)
    return _transformed(logits.float(), settings), seeds, positions
