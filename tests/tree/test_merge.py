"""Two trees become one: the likeliest nodes of their union, agreement counted."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.tree import DraftTree, merge
from random_trees import random_tree


def tree(nodes):
    """From (token, parent, conditional probability) of each node."""
    paths = [0.0]
    for _, parent, probability in nodes:
        paths.append(paths[parent] + math.log(probability))
    tokens, parents, _ = zip(*nodes, strict=True) if nodes else ((), (), ())
    return DraftTree(
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(parents, dtype=torch.int64),
        torch.tensor(paths[1:], dtype=torch.float32),
    )


def paths_of(tree):
    """Path probability by path of tokens."""
    paths = [()]
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*paths[parent], token))
    return dict(zip(paths[1:], tree.log_probs.exp().tolist(), strict=True))


def test_the_likeliest_nodes_of_both_stay():
    first = tree([(1, 0, 0.5), (2, 0, 0.3), (3, 1, 0.4)])
    second = tree([(7, 0, 0.4), (8, 1, 0.9), (9, 2, 0.9)])
    assert paths_of(merge(first, second, 4)) == pytest.approx({(1,): 0.5, (7,): 0.4, (7, 8): 0.36, (7, 8, 9): 0.324})


def test_a_path_that_both_hold_is_likelier_than_either_says_and_so_is_what_follows_it():
    first = tree([(1, 0, 0.5), (3, 1, 0.4), (2, 0, 0.3)])
    second = tree([(1, 0, 0.6), (4, 1, 0.5)])
    shared = 1 - 0.5 * 0.4
    expected = {(1,): shared, (1, 4): shared * 0.5, (1, 3): shared * 0.4, (2,): 0.3}
    assert paths_of(merge(first, second, 9)) == pytest.approx(expected)


@pytest.mark.parametrize("budget", [0, 1, 2, 5])
def test_with_an_empty_tree_the_other_one_stays_cut_to_the_budget(budget):
    full = tree([(1, 0, 0.5), (3, 1, 0.4)])
    for merged in (merge(full, DraftTree.empty(), budget), merge(DraftTree.empty(), full, budget)):
        assert merged.tokens.tolist() == full.tokens.tolist()[:budget]
        merged.validate()
    assert merge(DraftTree.empty(), DraftTree.empty(), budget).num_nodes == 0


def test_certain_tokens_are_merged_without_a_nan():
    certain = tree([(1, 0, 1.0), (2, 1, 1.0)])
    merged = merge(certain, certain, 5)
    merged.validate()
    assert paths_of(merged) == pytest.approx({(1,): 1.0, (1, 2): 1.0})


@given(st.integers(0, 10**6), st.integers(0, 12), st.integers(0, 12), st.integers(0, 30))
def test_a_merged_tree_is_a_tree_of_their_paths_and_the_best_of_its_size(seed, size, other_size, budget):
    first, second = random_tree(seed, size), random_tree(seed + 1, other_size)
    merged = merge(first, second, budget)
    merged.validate()
    union = paths_of(first).keys() | paths_of(second).keys()
    found = paths_of(merged)
    assert found.keys() <= union and len(found) == merged.num_nodes == min(budget, len(union))
    everything = paths_of(merge(first, second, len(union)))
    best = sorted(everything.values(), reverse=True)[: len(found)]
    assert sorted(found.values(), reverse=True) == pytest.approx(best)
