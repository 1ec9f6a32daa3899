"""The argmax of scores plus hashed Gumbel noise in host memory, where hardly any token needs its noise.

A token with uniform number u has noise -log(-log u), at most -log(1 - u). A bound on that comes from the leading bits
of u alone, without a logarithm; only where score and bound together reach the best total so far is the noise computed.

Letters: r rows (a sequence's node each), v vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, no_type_check

import numpy as np

from paceline.host_jit import host_jit

# Odd multipliers of the SplitMix64 finaliser (Steele, Lea and Flood, 2014), as signed 64-bit integers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
_MASK_30, _MASK_27, _MASK_31, _MASK_11 = ((1 << (64 - bits)) - 1 for bits in (30, 27, 31, 11))
_BLOCK = 64
"""Tokens that are looked at together."""
_LEADING = 31
_MASK_LEADING = (1 << _LEADING) - 1
_STEP = math.log(2) / 2**23
"""What one unit of a float32's bit pattern adds to a lower bound of its logarithm: log2(1 + m) >= m on 0..1."""
_TOP = np.float32((127 + _LEADING) * math.log(2) + 1e-3)  # 1e-3 covers the rounding of float32


@host_jit
@no_type_check
def _mix(x):
    x = (x ^ ((x >> 30) & _MASK_30)) * MIX_1
    x = (x ^ ((x >> 27) & _MASK_27)) * MIX_2
    return x ^ ((x >> 31) & _MASK_31)


@host_jit
@no_type_check
def _total(score, bits):
    return np.float64(score) - math.log(-math.log((np.float64(bits) + 0.5) * 2.0**-53))


@host_jit
@no_type_check
def _bits(key, token):
    return (_mix(_mix(key + token * GOLDEN)) >> 11) & _MASK_11


@host_jit
@no_type_check
def _bound_noise(key, above, bounds):
    """Fill `bounds` [v] with float32 numbers that no token's noise exceeds; `above` [v] is scratch space."""
    for token in range(len(bounds)):
        leading = (_mix(_mix(key + token * GOLDEN)) >> (64 - _LEADING)) & _MASK_LEADING
        above[token] = np.float32(np.int32(_MASK_LEADING - leading))
    patterns = above.view(np.int32)
    for token in range(len(bounds)):
        bounds[token] = _TOP - np.float32(patterns[token]) * np.float32(_STEP)


@host_jit
@no_type_check
def _best_token(scores, key, bounds):
    """The first token [] of largest score plus noise, of scores [v]."""
    best_token = np.argmax(scores)
    best = _total(scores[best_token], _bits(key, best_token))
    for first in range(0, len(scores), _BLOCK):
        last = min(first + _BLOCK, len(scores))
        least = np.float32(best - 1e-3 - 1e-6 * abs(best))
        reached = 0
        for token in range(first, last):
            reached |= scores[token] + bounds[token] >= least
        if not reached:
            continue
        for token in range(first, last):
            if scores[token] + bounds[token] < least:
                continue
            total = _total(scores[token], _bits(key, token))
            if total > best or (total == best and token < best_token):
                best_token, best = token, total
    return best_token


@host_jit
@no_type_check
def gumbel_argmax_host(scores: Any, seeds: Any, positions: Any) -> Any:
    """Int64[r] of scores [r, v], seeds [r] and positions [r]; of equal totals the first token's wins."""
    num_rows, vocabulary = scores.shape
    tokens = np.full(num_rows, -1, np.int64)
    above, bounds = np.empty(vocabulary, np.float32), np.empty(vocabulary, np.float32)
    for first in range(num_rows):
        if tokens[first] >= 0:
            continue  # done with the first of its kind, whose noise it shares
        key = _mix(_mix(seeds[first] * GOLDEN) + positions[first] * GOLDEN)
        _bound_noise(key, above, bounds)
        for row in range(first, num_rows):
            if seeds[row] == seeds[first] and positions[row] == positions[first]:
                tokens[row] = _best_token(scores[row], key, bounds)
    return tokens
