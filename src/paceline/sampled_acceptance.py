"""Rules for a chain whose tokens were sampled from the drafter's q: the reject rule and the block rule.

Both keep a prefix of the chain and say which distribution the next token is drawn from, such that every emitted token
is distributed as the target's p. The reject rule (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318)
decides token by token; the block rule (Sun et al., arXiv 2403.10444) decides for the whole chain and never keeps less
in expectation. The match rule needs neither q nor these: it serves every tree.

Letters: n drafted tokens, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

SampledRule = Callable[
    [Float[Tensor, "n+1 v"], Float[Tensor, "n v"], Int64[Tensor, " n"], Float[Tensor, " n"]], tuple[int, Tensor]
]
"""(p after the anchor and each token, q of each token, tokens, uniform numbers) -> (kept, weights of the next)."""


def reject(
    p: Float[Tensor, "n+1 v"], q: Float[Tensor, "n v"], tokens: Int64[Tensor, " n"], uniforms: Float[Tensor, " n"]
) -> tuple[int, Float[Tensor, " v"]]:
    """Keep a token with probability min(1, p/q); at the first that falls draw from what p has over q."""
    ratios = _ratios(p, q, tokens)
    fallen = (uniforms >= ratios).nonzero()
    if not len(fallen):
        return len(tokens), p[-1]
    kept = int(fallen[0])
    return kept, _rest(p[kept], q[kept])


def block(
    p: Float[Tensor, "n+1 v"], q: Float[Tensor, "n v"], tokens: Int64[Tensor, " n"], uniforms: Float[Tensor, " n"]
) -> tuple[int, Float[Tensor, " v"]]:
    """Keep the longest prefix that passes its own test, in which what later tokens could still win is counted."""
    count = len(tokens)
    ratios = _ratios(p, q, tokens, at_most=torch.inf).tolist()
    weight, kept, kept_weight = 1.0, 0, 1.0
    for i in range(1, count + 1):
        weight = min(1.0, weight * ratios[i - 1])
        passing = weight
        if i < count:
            excess = float((weight * p[i] - q[i]).clamp_min(0.0).sum())
            passing = excess / (excess + 1.0 - weight) if excess > 0.0 else 0.0
        if float(uniforms[i - 1]) < passing:
            kept, kept_weight = i, weight
    if kept == count:
        return kept, p[-1]
    return kept, _rest(p[kept], q[kept], kept_weight)


def _rest(p: Float[Tensor, " v"], q: Float[Tensor, " v"], weight: float = 1.0) -> Float[Tensor, " v"]:
    """What p has over q; p itself where rounding leaves nothing."""
    excess = (weight * p - q).clamp_min(0.0)
    return excess if bool(excess.any()) else p


def _ratios(p: Tensor, q: Tensor, tokens: Tensor, at_most: float = 1.0) -> Float[Tensor, " n"]:
    at = tokens[:, None]
    return (p[:-1].gather(1, at) / q.gather(1, at))[:, 0].clamp_max(at_most)
