"""A second block below the end of the first: the tree is that of the union, likeliest first."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.tree import DraftTree, best_first, graft, likeliest_end
from random_trees import random_marginals


def paths(tree):
    found = {0: ()}
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True), start=1):
        found[node] = (*found[parent], token)
    return {found[node]: value for node, value in enumerate(tree.log_probs.tolist(), start=1)}


def test_the_likeliest_end_is_a_leaf_of_that_depth():
    tokens, parents = torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 0, 1, 2, 3])
    tree = DraftTree(tokens, parents, torch.tensor([-0.1, -0.5, -0.6, -0.9, -1.0]))
    assert likeliest_end(tree, 1) is None  # both have children
    assert likeliest_end(tree, 2) == (4, pytest.approx(-0.9))
    assert likeliest_end(tree, 3) == (5, pytest.approx(-1.0))
    assert likeliest_end(tree, 4) is None and likeliest_end(DraftTree.empty(), 1) is None


@given(seed=st.integers(0, 1000), budget=st.integers(1, 40), depth=st.integers(1, 3))
def test_a_graft_holds_the_likeliest_nodes_of_both(seed, budget, depth):
    tree, branch = best_first(random_marginals(3, 5, seed), 12), best_first(random_marginals(2, 4, seed + 1), 8)
    end = likeliest_end(tree, depth)
    if end is None:
        return
    root = next(path for node, path in enumerate(paths(tree), start=1) if node == end[0])
    union = paths(tree) | {(*root, *path): end[1] + value for path, value in paths(branch).items()}
    grown = graft(tree, end[0], branch, budget)
    grown.validate()
    assert grown.num_nodes == min(budget, len(union))
    assert (grown.log_probs[1:] <= grown.log_probs[:-1]).all()
    found = paths(grown)
    assert all(value == pytest.approx(union[path], abs=1e-5) for path, value in found.items())
    assert min(found.values()) >= sorted(union.values(), reverse=True)[len(found) - 1] - 1e-5
