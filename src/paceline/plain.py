"""Plain decoding, as short as it can be said: the reference that the loop is tested against."""

from __future__ import annotations

import torch

from paceline.penalties import edit_one
from paceline.sampling import target_tokens
from paceline.sequence import Constraint
from paceline.target.base import Target
from paceline.tree import DraftTree, pack
from paceline.types import GenerationSettings


def plain_decode(
    target: Target, prompt: list[int], settings: GenerationSettings, constraint: Constraint | None = None
) -> list[int]:
    """One token a pass until a token that ends the answer, which is included, or `max_tokens`."""
    ends = settings.ends(target.info.eos_token_ids)
    cache = target.new_cache(1, len(prompt) + settings.max_tokens)
    logits = target.prefill(cache, 0, prompt).logits[0]
    tokens: list[int] = []
    while True:
        position = torch.tensor([len(prompt) + len(tokens)], device=logits.device)
        if settings.edits_logits:
            logits = edit_one(logits[0], prompt, tokens, settings, ends)[None]
        if constraint is not None:
            constraint.prune(DraftTree.empty())
            constraint.mask(logits)
        tokens.append(int(target_tokens(logits, position, [settings])[0]))
        if constraint is not None:
            constraint.advance(tokens[-1:])
        if tokens[-1] in ends or len(tokens) == settings.max_tokens:
            return tokens
        anchor = torch.tensor([tokens[-1]], device=logits.device)
        logits = target.verify(cache, pack([DraftTree.empty(logits.device)], anchor)).logits[0]
        cache.keep([[]])
