"""DDTree's best-first growth: optimal, and the same in every form."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tree import DraftTree, Marginals, best_first
from paceline.tree.best_first import best_first_reference
from paceline.tree.best_first_host import best_first_host
from paceline.tree.best_first_levelwise import best_first_levelwise, best_first_padded
from random_trees import any_marginals, expected_acceptance, random_marginals, tied_marginals


def prefix_probabilities(marginals: Marginals) -> dict[tuple[int, ...], float]:
    """Every possible prefix of ranks, by brute force."""
    probabilities = marginals.log_probs.double().exp().tolist()
    width = marginals.tokens.shape[1]
    found = {}
    for depth in range(1, len(probabilities) + 1):
        for ranks in itertools.product(range(width), repeat=depth):
            probability = 1.0
            for position, rank in enumerate(ranks):
                probability *= probabilities[position][rank]
            if probability > 0:
                found[ranks] = probability
    return found


def mean_accepted_length(tree: set[tuple[int, ...]], outcomes: dict[tuple[int, ...], float]) -> float:
    """E[accepted tokens] when the target's continuation is one of `outcomes`: counted, not derived."""
    total = 0.0
    for outcome, probability in outcomes.items():
        depth = 0
        while depth < len(outcome) and outcome[: depth + 1] in tree:
            depth += 1
        total += probability * depth
    return total


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
def test_no_prefix_closed_tree_of_as_many_nodes_is_accepted_longer(budget: int) -> None:
    marginals = random_marginals(2, 2, seed=budget, vocabulary=2, sharpness=1.0)
    prefixes = prefix_probabilities(marginals)
    outcomes = {ranks: p for ranks, p in prefixes.items() if len(ranks) == 2}
    best_length = max(mean_accepted_length(set(nodes), outcomes) for nodes in itertools.combinations(prefixes, budget))
    assert expected_acceptance(best_first_host(marginals, budget)) == pytest.approx(best_length, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(any_marginals(max_positions=4, max_width=4), st.integers(0, 60))
def test_the_tree_has_the_likeliest_prefixes(marginals: Marginals, budget: int) -> None:
    likeliest = sorted(prefix_probabilities(marginals).values(), reverse=True)[:budget]
    tree = best_first_host(marginals, budget)
    assert tree.num_nodes == len(likeliest)
    assert tree.log_probs.exp().tolist() == pytest.approx(likeliest, abs=1e-6)


@settings(max_examples=80, deadline=None)
@given(any_marginals(), st.integers(0, 200))
def test_the_host_form_is_the_reference_node_for_node(marginals: Marginals, budget: int) -> None:
    tree, reference = best_first_host(marginals, budget), best_first_reference(marginals, budget)
    assert torch.equal(tree.tokens, reference.tokens)
    assert torch.equal(tree.parents, reference.parents)
    assert torch.equal(tree.log_probs, reference.log_probs)


@settings(max_examples=60, deadline=None)
@given(any_marginals(), st.integers(0, 200))
def test_the_levelwise_form_has_the_scores_of_the_reference(marginals: Marginals, budget: int) -> None:
    tree = best_first_levelwise(marginals, budget)
    tree.validate()
    assert torch.equal(tree.log_probs, best_first_reference(marginals, budget).log_probs)


@pytest.mark.parametrize("budget", [1, 2, 7, 64, 256, 1024])
def test_the_levelwise_form_expects_the_same_acceptance_at_every_budget(budget: int) -> None:
    marginals = random_marginals(15, min(budget, 512), seed=budget)
    tree, reference = best_first_levelwise(marginals, budget), best_first_reference(marginals, budget)
    tree.validate()
    assert tree.num_nodes == reference.num_nodes == budget
    assert expected_acceptance(tree) == expected_acceptance(reference)
    assert (tree.log_probs.diff() <= 0).all()


def test_the_levelwise_form_never_waits_for_the_device() -> None:
    # Meta tensors have shapes and no values: anything that needed a value on the host would raise.
    on_meta = Marginals(torch.empty(15, 64, dtype=torch.int64, device="meta"), torch.empty(15, 64, device="meta"))
    padded = best_first_padded(on_meta, 64)
    assert padded.tokens.shape == padded.parents.shape == padded.log_probs.shape == (64,)


def test_best_first_takes_the_host_form_for_tensors_in_host_memory() -> None:
    marginals = tied_marginals(5, 6, seed=0)
    assert torch.equal(best_first(marginals, 40).tokens, best_first_host(marginals, 40).tokens)


@pytest.mark.parametrize("grow", [best_first_host, best_first_reference, best_first_levelwise])
def test_parents_come_before_children_where_every_token_is_certain(
    grow: Callable[[Marginals, int], DraftTree],
) -> None:
    marginals = Marginals(torch.arange(3).repeat(5, 1), torch.zeros(5, 3))
    for budget in (1, 4, 17, 100, 363, 400):
        tree = grow(marginals, budget)
        tree.validate()
        assert tree.num_nodes == min(budget, 3 + 9 + 27 + 81 + 243)


@pytest.mark.parametrize("grow", [best_first_host, best_first_reference, best_first_levelwise])
def test_certain_positions_make_the_tree_a_chain(grow: Callable[[Marginals, int], DraftTree]) -> None:
    log_probs = torch.tensor([[0.0, -torch.inf]]).repeat(6, 1)
    tree = grow(Marginals(torch.tensor([[5, 6]]).repeat(6, 1), log_probs), 10)
    assert tree.tokens.tolist() == [5] * 6
    assert tree.parents.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_float_sum_that_overflows_never_enters_the_tree() -> None:
    marginals = Marginals(torch.tensor([[1], [2], [3]]), torch.full((3, 1), -3e38))
    for grow in (best_first_host, best_first_reference, best_first_levelwise):
        assert grow(marginals, 3).tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("log_probs", "what"), [([-1.0, float("nan")], "NaN"), ([-2.0, -1.0], "increase"), ([1.0, 0.0], "above 0")]
)
def test_the_reference_rejects_marginals_that_break_their_promise(log_probs: list[float], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        best_first_reference(Marginals(torch.tensor([[1, 2]]), torch.tensor([log_probs])), 2)


@pytest.mark.parametrize(("budget", "target_ms"), [(64, 0.1), (512, 0.5)])
def test_growing_on_the_host_is_quick(budget: int, target_ms: float) -> None:
    marginals = random_marginals(15, 512, seed=0)
    best_first_host(marginals, budget)  # compiles
    times = []
    for _ in range(50):
        start = time.perf_counter()
        best_first_host(marginals, budget)
        times.append((time.perf_counter() - start) * 1e3)
    print(f"best_first, {budget} nodes: {min(times):.3f} ms (target {target_ms} ms)")
    assert min(times) < 4 * target_ms
