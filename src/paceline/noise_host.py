"""The argmax of scores plus hashed Gumbel noise in host memory, where hardly any token needs its noise.

A token with uniform number u has noise -log(-log u), at most -log(1 - u). It can overtake the best total so far only if
1 - u is below exp(score - best); the integer behind u is compared with a power of two above that, and two logarithms
are taken only of the few that pass.
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
_PER_LN_2 = 1 / math.log(2)


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
def gumbel_argmax_host(scores: Any, seeds: Any, positions: Any) -> Any:
    """Int64[r] of scores [r, v], seeds [r] and positions [r]; of equal totals the first token's wins."""
    num_rows, vocabulary = scores.shape
    tokens = np.zeros(num_rows, np.int64)
    best = np.empty(num_rows, np.float64)
    for first in range(num_rows):
        key = _mix(_mix(seeds[first] * GOLDEN) + positions[first] * GOLDEN)
        alike = [r for r in range(first, num_rows) if seeds[r] == seeds[first] and positions[r] == positions[first]]
        earlier = [r for r in range(first) if seeds[r] == seeds[first] and positions[r] == positions[first]]
        if len(earlier) > 0:
            continue  # done with the first of its kind, whose noise it shares
        for row in alike:
            token = np.argmax(scores[row])
            bits = (_mix(_mix(key + token * GOLDEN)) >> 11) & _MASK_11
            tokens[row], best[row] = token, _total(scores[row, token], bits)
        for token in range(vocabulary):
            bits = (_mix(_mix(key + token * GOLDEN)) >> 11) & _MASK_11
            above = 2.0**53 - bits
            for row in alike:
                behind = best[row] - scores[row, token]
                if not behind < 38.0 or (behind > 0 and above > 2.0 ** (54 - math.floor(behind * _PER_LN_2))):
                    continue
                total = _total(scores[row, token], bits)
                if total > best[row] or (total == best[row] and token < tokens[row]):
                    tokens[row], best[row] = token, total
    return tokens
