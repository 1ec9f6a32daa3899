"""Candidates ranked with the target's own noise."""

import pytest
import torch

from paceline.noise import gumbel_argmax
from paceline.tree import Marginals
from paceline.tree.shared_noise import Sharpness


def marginals_of(logits, width):
    top = logits.log_softmax(-1).topk(width)
    return Marginals(top.indices, top.values)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_a_drafter_that_knows_p_proposes_what_the_target_draws(temperature):
    logits = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)) * 2
    ranked = Sharpness().rank(marginals_of(logits, 64), temperature, 9, 100)
    ranked.validate()
    drawn = gumbel_argmax(logits / temperature, torch.full((40,), 9), torch.arange(100, 140))
    assert torch.equal(ranked.tokens[:, 0], drawn)


def test_another_seed_or_position_ranks_otherwise():
    marginals = marginals_of(torch.zeros(20, 64), 64)
    first = Sharpness().rank(marginals, 1.0, 1, 5).tokens[:, 0]
    assert not torch.equal(first, Sharpness().rank(marginals, 1.0, 2, 5).tokens[:, 0])
    assert not torch.equal(first, Sharpness().rank(marginals, 1.0, 1, 6).tokens[:, 0])


def sharpness_after(drafter_logits, target_logits, rounds=30):
    """The sharpness once many rounds of three positions have shown what the target draws."""
    sharpness, tokens = Sharpness(), [0]
    for _ in range(rounds):
        position = len(tokens)
        drafted, true = drafter_logits(position), target_logits(position)
        sharpness.rank(marginals_of(drafted, 16), 1.0, 4, position)
        tokens += gumbel_argmax(true, torch.full((3,), 4), torch.arange(position, position + 3)).tolist()
        sharpness.learn(tokens)
    return sharpness.value


def logits_at(position, salt=0):
    return torch.randn(3, 16, generator=torch.Generator().manual_seed(position + salt)) * 2


def test_the_sharpness_follows_how_well_the_drafter_knows_the_target():
    exact = sharpness_after(logits_at, logits_at)
    ignorant = sharpness_after(lambda p: logits_at(p, 10**6) * 2, logits_at)
    assert exact < 1.6 < ignorant


def test_tokens_that_never_came_or_were_no_candidates_teach_nothing():
    sharpness = Sharpness()
    sharpness.learn([1, 2, 3])
    sharpness.rank(marginals_of(torch.zeros(2, 8), 4), 1.0, 0, 3)
    sharpness.learn([1, 2, 3])  # nothing new
    sharpness.rank(marginals_of(torch.zeros(2, 8), 4), 1.0, 0, 3)
    sharpness.learn([1, 2, 3, 99, 98])
    assert sharpness.value == Sharpness().value
