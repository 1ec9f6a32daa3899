"""What a drafter proposes when all features of a text come at once, in a batch of one."""

from __future__ import annotations

import torch

from paceline.metrics import StageClock


def features_of(target, drafter, tokens):
    """The target's features of these tokens."""
    return target.prefill(target.new_cache(1, 64), 0, tokens, drafter.feature_layers).features


def draft_alone(target, drafter, tokens, request):
    """The tree when all features come at once."""
    state = drafter.new_state(1, 64, torch.device("cpu"))
    drafter.observe(state, 0, features_of(target, drafter, tokens[:-1]), [len(tokens) - 1])
    return drafter.draft(state, [request], StageClock())[0]


def same(a, b):
    """Whether two trees hold the same tokens below the same parents."""
    return a.tokens.tolist() == b.tokens.tolist() and a.parents.tolist() == b.parents.tolist()
