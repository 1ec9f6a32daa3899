"""Where training blocks begin."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_anchors(length: int, response_start: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(anchors Int64[count], valid Bool[count]) of one conversation, without repetition, ascending.

    An anchor is a response token whose next token is supervised too, as in decoding: the first anchor there is
    the response's first token. A short response has fewer than `count`; the rest repeats its first, not valid.
    """
    candidates = max(length - 1 - response_start, 0)
    chosen = torch.randperm(candidates, generator=generator)[:count].sort().values + response_start
    valid = torch.arange(count) < len(chosen)
    filling = torch.full((count - len(chosen),), response_start, dtype=torch.long)
    return torch.cat([chosen, filling]), valid
