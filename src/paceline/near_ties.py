"""Where a drafted text parts from the plain one: how close the target's two best tokens were there.

In float32 texts are equal. In bfloat16 a wider forward pass rounds differently, so two tokens whose logits
nearly tie can swap; a divergence at a wide gap would be a fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.penalties import edit_one
from paceline.sampling import top_two_gap
from paceline.sequence import Constraint
from paceline.target.base import Target
from paceline.tree import DraftTree
from paceline.types import GenerationSettings

#: Largest gap between the two best logits that rounding may swap, in units of the last place of the best one.
MAX_GAP_ULPS = 8


@dataclass(frozen=True)
class Divergence:
    """The first token in which two texts differ, and how far apart the plain target's two best scores were there."""

    position: int
    gap: float
    bound: float

    @property
    def is_near_tie(self) -> bool:
        return self.gap <= self.bound


def find_divergence(
    target: Target,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    settings: GenerationSettings,
    constraint: Constraint | None = None,
) -> Divergence | None:
    """None where the texts are equal; `constraint` is a fresh one where the settings have a grammar."""
    if list(plain) == list(other):
        return None
    pairs = enumerate(zip(plain, other, strict=False))
    position = next((i for i, (a, b) in pairs if a != b), min(len(plain), len(other)))
    context = [*prompt, *plain[:position]]
    logits = target.prefill(target.new_cache(1, len(context)), 0, context).logits[0, -1]
    if settings.edits_logits:
        logits = edit_one(logits, prompt, plain[:position], settings, settings.ends(target.info.eos_token_ids))
    if constraint is not None:
        constraint.advance(list(plain[:position]))
        constraint.prune(DraftTree.empty())
        constraint.mask(logits[None])
    gap = top_two_gap(logits, len(context), settings)
    largest = float(logits.float().max().abs().clamp_min(2.0**-126)) / (settings.temperature or 1.0)
    ulp = 2.0 ** math.floor(math.log2(largest)) * target_eps(target)
    return Divergence(position, gap, MAX_GAP_ULPS * ulp)


def target_eps(target: Target) -> float:
    """Spacing of the target's numbers just above one."""
    return float(torch.finfo(target.info.dtype).eps)
