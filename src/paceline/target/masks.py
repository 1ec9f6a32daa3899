"""Additive attention masks over cache slots.

Letters: b rows, m queries of the pass, t slots seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def tree_mask(
    visible: Bool[Tensor, "b m m"],
    depths: Int64[Tensor, "b m"],
    starts: Sequence[int],
    dtype: torch.dtype,
    window: int | None = None,
) -> Float[Tensor, "b 1 m t"]:
    """0 where a query may look and the dtype's lowest number elsewhere; t = max(starts) + m.

    Query j of row i sees the committed slots 0 .. starts[i]-1 and the pass's own slots (from starts[i] on)
    that `visible` allows. With a sliding `window`, it sees only positions less than `window` before its own;
    a committed slot's position is its index, a node's is starts[i] + depth.
    """
    num_rows, width = depths.shape
    hidden = torch.finfo(dtype).min
    mask = torch.full((num_rows, 1, width, max(starts) + width), hidden, dtype=dtype, device=depths.device)
    for row, start in enumerate(starts):
        mask[row, :, :, :start] = 0
        allowed = visible[row]
        if window is not None:
            position = start + depths[row]
            past = torch.arange(start, device=depths.device)
            mask[row, 0, :, :start].masked_fill_(position[:, None] - past >= window, hidden)
            allowed = allowed & (depths[row][:, None] - depths[row] < window)
        mask[row, 0, :, start : start + width].masked_fill_(allowed, 0)
    return mask
