"""From logits to the target's token: transforms, and noise that is a function of (seed, position).

At temperature > 0 the token at sequence position t is argmax_v(log p(v) + g_t(v)), where g_t is Gumbel
noise hashed from the request's seed, t and v. That is an exact sample of p (the Gumbel-max trick), and it
makes the text a function of the seed alone: not of the drafter, the tree, or the neighbours in a batch.
METHODS section 1.

Letters: r rows (a sequence's node each), v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from paceline.types import GenerationSettings

# Odd multipliers of the SplitMix64 finaliser (Steele, Lea and Flood, 2014), as signed 64-bit integers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def _shift_right(x: Int64[Tensor, "*s"], bits: int) -> Int64[Tensor, "*s"]:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Int64[Tensor, "*s"]) -> Int64[Tensor, "*s"]:
    """A bijection of 64-bit integers whose outputs pass for independent random bits (SplitMix64)."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def gumbel_noise(seeds: Int64[Tensor, " r"], positions: Int64[Tensor, " r"], vocabulary: int) -> Float[Tensor, "r v"]:
    """Standard Gumbel noise for every token at each (seed, position); float64, the same on every device."""
    keys = _mix(_mix(seeds * _GOLDEN) + positions * _GOLDEN)
    tokens = torch.arange(vocabulary, device=keys.device)
    bits = _shift_right(_mix(_mix(keys[:, None] + tokens * _GOLDEN)), 11)
    uniform = (bits.double() + 0.5) * 2.0**-53
    return uniform.log_().neg_().log_().neg_()


def transformed_log_probs(logits: Float[Tensor, "r v"], settings: Sequence[GenerationSettings]) -> Float[Tensor, "r v"]:
    """log p of each row after temperature, top-k, top-p and min-p, in this order; excluded tokens are -inf.

    Every row must have a temperature above 0. Ties at the k-th logit are all kept.
    """

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
    return scores.log_softmax(-1)


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
    tokens = logits.argmax(-1)
    sampled = [i for i, s in enumerate(settings) if s.temperature > 0.0]
    if not sampled:
        return tokens
    rows = torch.tensor(sampled, device=logits.device)
    tokens[rows] = _scores(logits[rows], positions[rows], [settings[i] for i in sampled]).argmax(-1).to(tokens.device)
    return tokens


def top_two_gap(logits: Float[Tensor, " v"], position: int, settings: GenerationSettings) -> float:
    """How far the second score is below the best one, of the scores whose argmax is the target's token."""
    if settings.temperature > 0.0:
        scores = _scores(logits[None], torch.tensor([position], device=logits.device), [settings])[0]
    else:
        scores = logits.float()
    best, second = scores.topk(2).values.tolist()
    return float(best - second)


def _scores(
    logits: Float[Tensor, "r v"], positions: Int64[Tensor, " r"], settings: Sequence[GenerationSettings]
) -> Float[Tensor, "r v"]:
    """log p + noise in float64, on the CPU where the device has none."""
    if logits.device.type == "mps":
        logits, positions = logits.cpu(), positions.cpu()
    seeds = torch.tensor([s.seed for s in settings], device=logits.device)
    keys = torch.stack([seeds, positions], 1)
    # Nodes of equal depth share their noise: hash each (seed, position) once.
    unique, inverse = keys.unique(dim=0, return_inverse=True)
    noise = gumbel_noise(unique[:, 0], unique[:, 1], logits.shape[-1])
    return transformed_log_probs(logits.float(), settings).double() + noise[inverse]
