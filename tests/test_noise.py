"""Noise in host memory gives the tokens that noise for every token gives."""

import pytest
import torch
from scipy import stats

from paceline.noise import gumbel_argmax, gumbel_at, gumbel_noise


@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0, 40.0])
def test_the_argmax_equals_that_of_the_whole_noise(spread):
    torch.manual_seed(int(spread))
    scores = torch.randn(60, 3000) * spread
    seeds, positions = torch.arange(60) // 7, torch.arange(60) % 5
    whole = (scores.double() + gumbel_noise(seeds, positions, 3000)).argmax(-1)
    assert torch.equal(gumbel_argmax(scores, seeds, positions), whole)


def test_excluded_tokens_are_never_drawn_and_a_single_token_always_is():
    scores = torch.full((200, 50), -torch.inf)
    scores[:, 7:9] = torch.tensor([0.0, -3.0])
    drawn = gumbel_argmax(scores, torch.zeros(200, dtype=torch.int64), torch.arange(200))
    assert set(drawn.tolist()) == {7, 8}
    scores[:, 8] = -torch.inf
    assert gumbel_argmax(scores, torch.arange(200), torch.arange(200)).tolist() == [7] * 200


def test_draws_follow_the_softmax_of_the_scores():
    scores = torch.tensor([[2.0, 0.0, -1.0, 1.0, -6.0]])
    draws = 20000
    zeros = torch.zeros(draws, dtype=torch.int64)
    drawn = gumbel_argmax(scores.expand(draws, -1), zeros, torch.arange(draws))
    expected = draws * scores[0].double().softmax(-1).numpy()
    assert stats.chisquare(torch.bincount(drawn, minlength=5).numpy(), expected).pvalue > 0.001


def test_the_noise_of_some_tokens_is_that_of_all():
    seeds, positions = torch.tensor([3, -4]), torch.tensor([10, 2**40])
    tokens = torch.tensor([[5, 0, 99], [7, 7, 1]])
    assert torch.equal(gumbel_at(seeds, positions, tokens), gumbel_noise(seeds, positions, 100).gather(1, tokens))
