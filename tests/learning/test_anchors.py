"""Anchors lie where decoding would have them."""

import torch

from paceline.learning.anchors import sample_anchors


def sample(length, start, count, seed=0):
    return sample_anchors(length, start, count, torch.Generator().manual_seed(seed))


def test_anchors_run_from_the_first_response_token_to_the_last_but_one():
    anchors, valid = sample(12, 5, 6)
    assert anchors.tolist() == [5, 6, 7, 8, 9, 10]
    assert valid.all()


def test_no_anchor_comes_twice_and_all_of_them_come_sometimes():
    seen = set()
    for seed in range(60):
        anchors, valid = sample(20, 4, 5, seed)
        assert valid.all() and len(set(anchors.tolist())) == 5
        seen |= set(anchors.tolist())
    assert seen == set(range(4, 19))


def test_a_short_response_is_filled_up_with_anchors_that_are_not_valid():
    anchors, valid = sample(8, 5, 4)
    assert anchors.tolist() == [5, 6, 5, 5]
    assert valid.tolist() == [True, True, False, False]


def test_a_response_of_one_token_has_no_valid_anchor():
    _, valid = sample(6, 5, 3)
    assert not valid.any()


def test_the_seed_decides():
    assert torch.equal(sample(50, 4, 8, seed=1)[0], sample(50, 4, 8, seed=1)[0])
    assert not torch.equal(sample(50, 4, 8, seed=1)[0], sample(50, 4, 8, seed=2)[0])
