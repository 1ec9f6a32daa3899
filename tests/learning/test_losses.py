"""Losses against the plain formulas they stand for."""

import math

import pytest
import torch

from paceline.learning.losses import SparseTarget, chunked_loss, d_pace_weights, decayed_weights, mixed_target

BLOCKS, POSITIONS, HIDDEN, VOCABULARY, ENTRIES = 7, 3, 8, 11, 4


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(BLOCKS, POSITIONS, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=torch.float64)
    ids = torch.randint(VOCABULARY, (BLOCKS, POSITIONS, ENTRIES), generator=generator)
    weights = torch.rand(BLOCKS, POSITIONS, ENTRIES, generator=generator).softmax(-1)
    weights[2, 1:] = 0  # past the end
    labels = torch.where(weights.sum(-1) > 0, ids[..., 0], -1)
    labels[4, 0] = -1  # the true token cannot be drafted, yet the recorded distribution is learnt
    return hidden, head, SparseTarget(ids, weights, labels)


def plain_loss(hidden, head, target, weighting):
    """The formula, all at once, differentiated by autograd."""
    log_probs = (hidden @ head.T).float().log_softmax(-1)
    entropy = -(target.weights * log_probs.gather(-1, target.ids)).sum(-1)
    of_label = log_probs.detach().exp().gather(-1, target.labels.clamp(min=0)[..., None])[..., 0]
    correct = log_probs.argmax(-1) == target.labels
    weights = weighting(torch.where(target.labels >= 0, of_label, 0.0), correct) * (target.weights.sum(-1) > 0)
    return (weights * entropy).sum() / weights.sum()


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("weighting", [decayed_weights(4.0), d_pace_weights(0.3)], ids=["decay", "d_pace"])
def test_the_chunked_loss_and_its_gradients_are_those_of_the_plain_formula(problem, chunk, weighting):
    hidden, head, target = problem
    ours = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
    plain = [hidden.clone().requires_grad_(), head.clone().requires_grad_()]
    loss = chunked_loss(*ours, target, weighting, chunk).loss
    expected = plain_loss(*plain, target, weighting)
    (3 * loss).backward()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-6, rtol=1e-5)


def test_a_frozen_head_gets_no_gradient(problem):
    hidden, head, target = problem
    hidden.requires_grad_()
    chunked_loss(hidden, head, target, decayed_weights(4.0), 3).loss.backward()
    assert hidden.grad is not None and head.grad is None


def test_positions_past_the_end_get_no_gradient_and_blocks_without_labels_no_nan(problem):
    hidden, head, target = problem
    hidden.requires_grad_()
    chunked_loss(hidden, head, target, d_pace_weights(0.1), 3).loss.backward()
    assert hidden.grad[2, 1:].abs().sum() == 0 and hidden.grad[2, 0].abs().sum() > 0
    nothing = SparseTarget(target.ids, torch.zeros_like(target.weights), torch.full_like(target.labels, -1))
    assert chunked_loss(hidden, head, nothing, d_pace_weights(0.1), 3).loss == 0


def test_huge_logits_stay_finite(problem):
    hidden, head, target = problem
    hidden = (hidden * 1e4).float().requires_grad_()
    result = chunked_loss(hidden, head.float(), target, d_pace_weights(0.3), 3)
    result.loss.backward()
    assert result.loss.isfinite() and hidden.grad.isfinite().all()


def test_accuracy_and_cross_entropy_are_means_over_supervised_positions(problem):
    hidden, head, target = problem
    result = chunked_loss(hidden, head, target, decayed_weights(4.0), 2)
    supervised = target.weights.sum(-1) > 0
    right = ((hidden @ head.T).argmax(-1) == target.labels) & supervised
    torch.testing.assert_close(result.accuracy, (right.sum(0) / supervised.sum(0)).float())
    assert result.cross_entropy.shape == (POSITIONS,)


def test_decayed_weights_fall_by_the_papers_formula():
    weights = decayed_weights(4.0)(torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.bool))
    assert weights[1].tolist() == pytest.approx([math.exp(-k / 4) for k in range(5)])


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
def test_d_pace_weights_are_suffix_sums_of_prefix_products(smoothing):
    confidence = torch.rand(6, 5, generator=torch.Generator().manual_seed(1))
    weights = d_pace_weights(smoothing)(confidence, confidence > 1)
    for block in range(6):
        smoothed = [smoothing + (1 - smoothing) * float(c) for c in confidence[block]]
        for k in range(5):
            naive = sum(math.prod(smoothed[: j + 1]) for j in range(k, 5))
            assert float(weights[block, k]) == pytest.approx(naive, rel=1e-5)


def test_unsmoothed_d_pace_weights_are_the_derivative_of_the_expected_accepted_length():
    logs = torch.rand(5).log().requires_grad_()
    logs.exp().cumprod(0).sum().backward()
    torch.testing.assert_close(d_pace_weights(0.0)(logs.detach().exp()[None], logs[None] > 0)[0], logs.grad)


DRAFT_IDS = torch.tensor([-1, 0, 1, -1, 2, 3])  # target ids 0 and 3 cannot be drafted


def mix(label, tops, probabilities, soft, recorded=True):
    return mixed_target(
        torch.tensor([[label]]),
        torch.tensor([[tops]]),
        torch.tensor([[probabilities]]).log(),
        torch.tensor([[recorded]]),
        DRAFT_IDS,
        soft,
    )


def spread(target):
    """Weight of each draft id."""
    weights = torch.zeros(4).index_add_(0, target.ids.flatten(), target.weights.flatten())
    return weights.tolist()


def test_the_recorded_distribution_is_renormalised_over_what_can_be_drafted():
    assert spread(mix(1, [1, 3, 4], [0.5, 0.3, 0.1], soft=1.0)) == pytest.approx([5 / 6, 0, 1 / 6, 0])


def test_hard_and_soft_parts_are_mixed_by_their_share():
    assert spread(mix(2, [2, 4], [0.6, 0.2], soft=0.5)) == pytest.approx([0, 0.5 + 0.375, 0.125, 0])
    assert spread(mix(2, [2, 4], [0.6, 0.2], soft=0.0)) == pytest.approx([0, 1, 0, 0])


def test_where_one_part_is_missing_the_other_takes_all():
    assert spread(mix(3, [3, 4], [0.6, 0.2], soft=0.5)) == pytest.approx([0, 0, 1, 0])
    assert spread(mix(2, [2, 4], [0.6, 0.2], soft=0.5, recorded=False)) == pytest.approx([0, 1, 0, 0])
    assert spread(mix(2, [0, 3], [0.6, 0.2], soft=0.5)) == pytest.approx([0, 1, 0, 0])


def test_nothing_is_supervised_past_the_end_nor_without_a_soft_part_where_the_token_cannot_be_drafted():
    assert not mix(-1, [2, 4], [0.6, 0.2], soft=0.5).supervised.any()
    assert not mix(3, [2, 4], [0.6, 0.2], soft=0.0).supervised.any()
    assert mix(3, [2, 4], [0.6, 0.2], soft=0.5).labels.tolist() == [[-1]]
