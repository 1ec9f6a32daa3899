import numpy as np
import pytest
import torch
from scipy import stats
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from paceline.errors import InputError
from paceline.noise import gumbel_noise
from paceline.sampling import target_tokens, transformed_log_probs
from paceline.types import GenerationSettings


def _reference(logits, settings):
    """Hugging Face's processors, one after another."""
    scores = TemperatureLogitsWarper(settings.temperature)(None, logits)
    if settings.top_k:
        scores = TopKLogitsWarper(settings.top_k)(None, scores)
    if settings.top_p < 1:
        scores = TopPLogitsWarper(settings.top_p)(None, scores)
    if settings.min_p > 0:
        scores = MinPLogitsWarper(settings.min_p)(None, scores)
    return scores.log_softmax(-1)


CASES = [
    GenerationSettings(temperature=0.7),
    GenerationSettings(temperature=1.3, top_k=5),
    GenerationSettings(temperature=1.0, top_p=0.6),
    GenerationSettings(temperature=2.0, min_p=0.2),
    GenerationSettings(temperature=0.9, top_k=7, top_p=0.8, min_p=0.05),
]


def test_transforms_equal_hugging_face_one_row_at_a_time_and_mixed_in_a_batch():
    torch.manual_seed(0)
    logits = 3 * torch.randn(len(CASES), 30)
    mixed = transformed_log_probs(logits, CASES)
    for row, settings in enumerate(CASES):
        expected = _reference(logits[row : row + 1], settings)
        torch.testing.assert_close(transformed_log_probs(logits[row : row + 1], [settings]), expected)
        torch.testing.assert_close(mixed[row : row + 1], expected)


def test_noise_is_standard_gumbel_and_differs_by_seed_and_position():
    noise = gumbel_noise(torch.tensor([1, 1, 2]), torch.tensor([5, 6, 5]), 20000).numpy()
    for row in noise:
        assert stats.kstest(row, stats.gumbel_r.cdf).pvalue > 0.001
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert abs(np.corrcoef(noise[a], noise[b])[0, 1]) < 0.03


def test_noise_of_one_token_over_seeds_and_over_positions_is_standard_gumbel():
    count = torch.arange(20000)
    zeros = torch.zeros_like(count)
    for seeds, positions in [(count, zeros), (zeros, count)]:
        noise = gumbel_noise(seeds, positions, 3)[:, 2].numpy()
        assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 0.001
        assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.03


def test_sampled_tokens_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    settings = GenerationSettings(temperature=1.5, seed=11)
    draws = 20000
    tokens = target_tokens(logits.expand(draws, -1), torch.arange(draws), [settings] * draws)
    counts = torch.bincount(tokens, minlength=4).numpy()
    expected = draws * torch.softmax(logits[0].double() / 1.5, -1).numpy()
    assert stats.chisquare(counts, expected).pvalue > 0.001


def test_greedy_rows_take_the_argmax_beside_sampled_ones():
    torch.manual_seed(1)
    logits = torch.randn(6, 50)
    greedy, sampled = GenerationSettings(), GenerationSettings(temperature=5.0, seed=3)
    tokens = target_tokens(logits, torch.arange(6), [greedy, sampled] * 3)
    assert tokens[::2].tolist() == logits[::2].argmax(-1).tolist()


def test_a_token_depends_on_seed_and_position_but_not_on_the_batch():
    torch.manual_seed(2)
    logits = torch.randn(8, 50)
    settings = [GenerationSettings(temperature=1.0, seed=s) for s in range(8)]
    positions = torch.arange(8) + 3
    together = target_tokens(logits, positions, settings)
    alone = [int(target_tokens(logits[i : i + 1], positions[i : i + 1], settings[i : i + 1])[0]) for i in range(8)]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"seed": 2**63},
        {"stop": ("",)},
        {"block_size": 1},
        {"tree_budget": 0},
    ],
)
def test_settings_outside_their_range_are_refused_by_name(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        GenerationSettings(**wrong)
