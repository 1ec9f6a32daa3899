"""What every growth promises, and what is particular to the chain and to top-k."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InputError
from paceline.tree import GROWTHS, Growth, Marginals, best_first, chain, top_k
from random_trees import any_marginals, expected_acceptance, random_marginals

every_growth = pytest.mark.parametrize("grow", GROWTHS.values(), ids=GROWTHS)


@every_growth
@settings(max_examples=30, deadline=None)
@given(marginals=any_marginals(), budget=st.integers(0, 80))
def test_a_tree_is_valid_likeliest_first_and_within_its_budget(grow: Growth, marginals: Marginals, budget: int) -> None:
    tree = grow(marginals, budget)
    tree.validate()
    assert tree.num_nodes <= budget
    assert (tree.log_probs.diff() <= 0).all()


@every_growth
@settings(max_examples=25, deadline=None)
@given(marginals=any_marginals(), budget=st.integers(0, 80))
def test_a_node_bears_a_candidate_of_its_depth_and_the_log_prob_of_its_path(
    grow: Growth, marginals: Marginals, budget: int
) -> None:
    tree = grow(marginals, budget)
    candidates = [
        dict(zip(t, p, strict=True))
        for t, p in zip(marginals.tokens.tolist(), marginals.log_probs.tolist(), strict=True)
    ]
    path_log_probs, depths = [0.0], [0]
    for token, parent, log_prob in zip(
        tree.tokens.tolist(), tree.parents.tolist(), tree.log_probs.tolist(), strict=True
    ):
        path_log_probs.append(path_log_probs[parent] + candidates[depths[parent]][token])
        depths.append(depths[parent] + 1)
        assert log_prob == pytest.approx(path_log_probs[-1], abs=1e-4)
    assert tree.depths().tolist() == depths[1:]


@every_growth
def test_a_budget_of_zero_grows_nothing(grow: Growth) -> None:
    assert grow(random_marginals(4, 4, seed=0), 0).num_nodes == 0


@every_growth
def test_no_positions_grow_nothing(grow: Growth) -> None:
    assert grow(random_marginals(0, 4, seed=0), 8).num_nodes == 0


@every_growth
def test_a_negative_budget_is_refused_in_one_sentence(grow: Growth) -> None:
    with pytest.raises(InputError, match=r"^The node budget is -1, but must be 0 \(no drafting\) or more\.$"):
        grow(random_marginals(4, 4, seed=0), -1)


@every_growth
def test_one_candidate_a_position_and_as_many_nodes_as_positions_make_the_chain(grow: Growth) -> None:
    marginals = random_marginals(7, 1, seed=3)
    tree = grow(marginals, 7)
    assert tree.tokens.tolist() == marginals.tokens[:, 0].tolist()
    assert tree.parents.tolist() == list(range(7))
    torch.testing.assert_close(tree.log_probs, marginals.log_probs[:, 0].cumsum(0))


@every_growth
def test_marginals_cut_from_wider_ones_grow_the_same_tree(grow: Growth) -> None:
    wide = random_marginals(5, 16, seed=4)
    cut = Marginals(wide.tokens[:, :6], wide.log_probs[:, :6])
    copied = Marginals(cut.tokens.clone(), cut.log_probs.clone())
    assert torch.equal(grow(cut, 30).tokens, grow(copied, 30).tokens)


def test_the_chain_follows_the_argmax_of_each_position_and_stops_where_nothing_can_occur() -> None:
    log_probs = torch.tensor([[-0.1, -3.0], [-0.2, -2.0], [-torch.inf, -torch.inf], [-0.1, -4.0]])
    marginals = Marginals(torch.tensor([[7, 1], [8, 1], [9, 1], [4, 1]]), log_probs)
    assert chain(marginals, 10).tokens.tolist() == [7, 8]
    assert chain(marginals, 1).tokens.tolist() == [7]


def test_top_k_with_width_one_is_the_chain() -> None:
    marginals = random_marginals(6, 8, seed=5)
    assert torch.equal(top_k(marginals, 4, width=1).tokens, chain(marginals, 4).tokens)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 12))
def test_top_k_never_expects_more_acceptance_than_best_first(seed: int, budget: int, width: int) -> None:
    marginals = random_marginals(5, 12, seed)
    assert expected_acceptance(top_k(marginals, budget, width)) <= expected_acceptance(best_first(marginals, budget))


def test_top_k_as_wide_as_its_budget_is_the_best_tree() -> None:
    marginals = random_marginals(5, 20, seed=6)
    assert torch.equal(top_k(marginals, 20, width=20).log_probs, best_first(marginals, 20).log_probs)


def test_top_k_expands_only_the_likeliest_nodes_of_a_level() -> None:
    log_probs = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.9, 0.05, 0.03, 0.02]]).log()
    marginals = Marginals(torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23]]), log_probs)
    tree = top_k(marginals, 100, width=2)
    assert tree.tokens.tolist() == [10, 20, 11, 20, 21, 21]
    assert tree.parents.tolist() == [0, 1, 0, 3, 1, 3]


def test_a_tree_that_contains_the_greedy_chain_expects_at_least_as_much() -> None:
    marginals = random_marginals(7, 16, seed=7)
    assert expected_acceptance(best_first(marginals, 7)) >= expected_acceptance(chain(marginals, 7))
