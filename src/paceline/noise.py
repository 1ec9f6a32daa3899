"""Gumbel noise that is a function of (seed, position, token) alone: the same on every device, in any batch.

argmax_v(log p(v) + g(v)) is an exact sample of p (the Gumbel-max trick). Hashed noise makes the sampled text a function
of the request's seed: not of the drafter, the tree, or the neighbours in a batch. METHODS section 1.

Letters: r rows (a sequence's node each), v vocabulary, k tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from paceline.noise_host import GOLDEN, MIX_1, MIX_2, gumbel_argmax_host

#: Independent streams of a request beside the noise of its tokens.
DRAFT, ACCEPT, REST = -1, -2, -3


def sample_seed(seed: int, index: int) -> int:
    """The seed of the index-th sample of a request; that of the first is the request's own."""
    return seed if index == 0 else stream_seed(seed, index)


def stream_seed(seed: int, stream: int) -> int:
    """A seed that follows from another one: streams below zero are ours, those above are a request's samples."""
    return int(_mix(torch.tensor(seed) * GOLDEN + stream))


def uniform_at(seed: int, positions: Int64[Tensor, " r"]) -> Float[Tensor, " r"]:
    """A number within 0..1 for each position; float64."""
    return _uniform(torch.full_like(positions, seed), positions, torch.zeros_like(positions)[:, None])[:, 0]


def gumbel_noise(seeds: Int64[Tensor, " r"], positions: Int64[Tensor, " r"], vocabulary: int) -> Float[Tensor, "r v"]:
    """Standard Gumbel noise for every token at each (seed, position); float64."""
    return gumbel_at(seeds, positions, torch.arange(vocabulary, device=seeds.device)[None])


def gumbel_at(
    seeds: Int64[Tensor, " r"], positions: Int64[Tensor, " r"], tokens: Int64[Tensor, "#r k"]
) -> Float[Tensor, "r k"]:
    """Standard Gumbel noise of some tokens at each (seed, position); float64, in host memory where MPS has none."""
    return _uniform(seeds, positions, tokens).log_().neg_().log_().neg_()


def _uniform(
    seeds: Int64[Tensor, " r"], positions: Int64[Tensor, " r"], tokens: Int64[Tensor, "#r k"]
) -> Float[Tensor, "r k"]:
    if tokens.device.type == "mps":  # which has no float64
        seeds, positions, tokens = seeds.cpu(), positions.cpu(), tokens.cpu()
    keys = _mix(_mix(seeds * GOLDEN) + positions * GOLDEN)
    bits = _shift_right(_mix(_mix(keys[:, None] + tokens * GOLDEN)), 11)
    return (bits.double() + 0.5) * 2.0**-53


def gumbel_argmax(
    scores: Float[Tensor, "r v"], seeds: Int64[Tensor, " r"], positions: Int64[Tensor, " r"]
) -> Int64[Tensor, " r"]:
    """argmax over tokens of scores + noise: a sample of each row's softmax; -inf excludes a token.

    In host memory only the tokens that can win are given noise.
    """
    if scores.device.type in ("cpu", "mps"):
        found = gumbel_argmax_host(scores.cpu().contiguous().numpy(), seeds.cpu().numpy(), positions.cpu().numpy())
        return torch.from_numpy(found).to(scores.device)
    keys = torch.stack([seeds, positions], 1)
    # Nodes of equal depth share their noise: hash each (seed, position) once.
    unique, inverse = keys.unique(dim=0, return_inverse=True)
    return (scores.double() + gumbel_noise(unique[:, 0], unique[:, 1], scores.shape[-1])[inverse]).argmax(-1)


def _shift_right(x: Int64[Tensor, "*s"], bits: int) -> Int64[Tensor, "*s"]:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Int64[Tensor, "*s"]) -> Int64[Tensor, "*s"]:
    """A bijection of 64-bit integers whose outputs pass for independent random bits (SplitMix64)."""
    x = (x ^ _shift_right(x, 30)) * MIX_1
    x = (x ^ _shift_right(x, 27)) * MIX_2
    return x ^ _shift_right(x, 31)
