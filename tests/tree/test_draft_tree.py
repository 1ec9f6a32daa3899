"""The draft tree as a value."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from paceline.tree import GROWTHS, DraftTree, Marginals
from random_trees import any_tree


def tree_of(tokens: list[int], parents: list[int], log_probs: list[float]) -> DraftTree:
    return DraftTree(torch.tensor(tokens), torch.tensor(parents), torch.tensor(log_probs))


def test_the_empty_tree_has_no_nodes_and_is_valid() -> None:
    tree = DraftTree.empty()
    tree.validate()
    assert tree.num_nodes == 0 and tree.depths().tolist() == []


def test_depths_count_from_one_at_the_children_of_the_root() -> None:
    tree = tree_of([1, 2, 3, 4, 5], [0, 1, 0, 2, 3], [-1.0, -2.0, -3.0, -4.0, -5.0])
    tree.validate()
    assert tree.depths().tolist() == [1, 2, 1, 3, 2]


@settings(max_examples=30, deadline=None)
@given(any_tree())
def test_a_node_is_one_deeper_than_its_parent(tree: DraftTree) -> None:
    depths = [0, *tree.depths().tolist()]
    assert depths[1:] == [depths[parent] + 1 for parent in tree.parents.tolist()]


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        (tree_of([1, 2], [0, 2], [-1.0, -2.0]), "parent"),
        (tree_of([1, 2], [0, -1], [-1.0, -2.0]), "parent"),
        (tree_of([1, 1], [0, 0], [-1.0, -2.0]), "siblings"),
        (tree_of([1, 2], [0, 1], [-2.0, -1.0]), "above its start"),
        (tree_of([1], [0], [-torch.inf]), "impossible"),
        (tree_of([1], [0], [float("nan")]), "impossible"),
    ],
)
def test_validate_names_what_does_not_hold(tree: DraftTree, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        tree.validate()


def test_the_same_token_may_occur_under_different_parents() -> None:
    tree_of([1, 2, 1, 1], [0, 0, 1, 2], [-1.0, -1.0, -2.0, -2.0]).validate()


def test_a_position_that_lists_a_token_twice_is_named() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Marginals(torch.tensor([[3, 3]]), torch.tensor([[-1.0, -2.0]])).validate()


def test_the_growths_cannot_be_changed_from_outside() -> None:
    assert list(GROWTHS) == ["chain", "top_k", "best_first"]
    with pytest.raises(TypeError):
        GROWTHS["mine"] = GROWTHS["chain"]  # type: ignore[index]
