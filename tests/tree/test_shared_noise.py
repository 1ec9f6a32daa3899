"""Candidates ranked with the target's own noise."""

import pytest
import torch

from paceline.noise import gumbel_argmax
from paceline.tree import Marginals
from paceline.tree.shared_noise import Coupling


def marginals_of(logits, width):
    top = logits.log_softmax(-1).topk(width)
    return Marginals(top.indices, top.values)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_a_drafter_that_knows_p_proposes_what_the_target_draws(temperature, monkeypatch):
    monkeypatch.setattr(Coupling, "weight_and_spread", (1.0, 1.0))
    logits = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)) * 2
    ranked = Coupling().rank(marginals_of(logits, 64), temperature, 9, 100)
    ranked.validate()
    drawn = gumbel_argmax(logits / temperature, torch.full((40,), 9), torch.arange(100, 140))
    assert torch.equal(ranked.tokens[:, 0], drawn)


def test_another_seed_or_position_ranks_otherwise():
    marginals = marginals_of(torch.zeros(20, 64), 64)
    first = Coupling().rank(marginals, 1.0, 1, 5).tokens[:, 0]
    assert not torch.equal(first, Coupling().rank(marginals, 1.0, 2, 5).tokens[:, 0])
    assert not torch.equal(first, Coupling().rank(marginals, 1.0, 1, 6).tokens[:, 0])


def coupling_after(drafter_logits, target_logits, rounds=30):
    """Weight and spread once many rounds of three positions have shown what the target draws."""
    coupling, tokens = Coupling(), [0]
    for _ in range(rounds):
        position = len(tokens)
        drafted, true = drafter_logits(position), target_logits(position)
        coupling.rank(marginals_of(drafted, 16), 1.0, 4, position)
        tokens += gumbel_argmax(true, torch.full((3,), 4), torch.arange(position, position + 3)).tolist()
        coupling.learn(tokens)
    return coupling.weight_and_spread


def logits_at(position, salt=0):
    return torch.randn(3, 16, generator=torch.Generator().manual_seed(position + salt)) * 2


def test_weight_and_spread_follow_how_well_the_drafter_knows_the_target():
    exact = coupling_after(logits_at, logits_at)
    ignorant = coupling_after(lambda p: logits_at(p, 10**6) * 2, logits_at)
    assert exact[0] > ignorant[0]  # the drafter counts for more against the noise
    assert exact[1] == 0.8 < ignorant[1]  # and the outcome is surer


def test_tokens_that_never_came_or_were_no_candidates_teach_nothing():
    coupling = Coupling()
    coupling.learn([1, 2, 3])
    coupling.rank(marginals_of(torch.zeros(2, 8), 4), 1.0, 0, 3)
    coupling.learn([1, 2, 3])  # nothing new
    coupling.rank(marginals_of(torch.zeros(2, 8), 4), 1.0, 0, 3)
    coupling.learn([1, 2, 3, 99, 98])
    assert coupling.weight_and_spread == Coupling().weight_and_spread
