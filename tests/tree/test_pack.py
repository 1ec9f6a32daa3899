"""Packing trees and who sees whom, against a tree spelled by hand and an independent loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tree import DraftTree, TreeBatch, pack
from paceline.tree.pack import pack_tensors
from random_trees import any_tree

Pack = Callable[[Sequence[DraftTree], torch.Tensor], TreeBatch]
every_form = pytest.mark.parametrize("form", [pack, pack_tensors])

#     0 ──┬── 1 ──┬── 3 ──── 6
#         │       └── 4
#         └── 2 ──── 5 ──── 7
SEVEN = DraftTree(
    tokens=torch.tensor([11, 12, 13, 14, 15, 16, 17]),
    parents=torch.tensor([0, 0, 1, 1, 2, 3, 5]),
    log_probs=torch.zeros(7),
)
SEVEN_VISIBLE = [
    [1, 0, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 0, 0],
    [1, 0, 1, 0, 0, 0, 0, 0],
    [1, 1, 0, 1, 0, 0, 0, 0],
    [1, 1, 0, 0, 1, 0, 0, 0],
    [1, 0, 1, 0, 0, 1, 0, 0],
    [1, 1, 0, 1, 0, 0, 1, 0],
    [1, 0, 1, 0, 0, 1, 0, 1],
]


def path_to_root(parents: list[int], node: int) -> list[int]:
    path = [node]
    while path[-1] != 0:
        path.append(parents[path[-1] - 1])
    return path


def chain_of(*tokens: int) -> DraftTree:
    return DraftTree(torch.tensor(tokens), torch.arange(len(tokens)), torch.zeros(len(tokens)))


@every_form
def test_seven_nodes_see_themselves_and_their_ancestors(form: Pack) -> None:
    batch = form([SEVEN], torch.tensor([10]))
    assert batch.visible[0].int().tolist() == SEVEN_VISIBLE
    assert batch.tokens.tolist() == [[10, 11, 12, 13, 14, 15, 16, 17]]
    assert batch.parents.tolist() == [[0, 0, 0, 1, 1, 2, 3, 5]]
    assert batch.depths.tolist() == [[0, 1, 1, 2, 2, 2, 3, 3]]
    assert batch.num_nodes.tolist() == [7]


@every_form
@settings(max_examples=25, deadline=None)
@given(trees=st.lists(any_tree(), min_size=1, max_size=5))
def test_every_element_of_a_batch_is_what_a_walk_to_the_root_says(form: Pack, trees: list[DraftTree]) -> None:
    batch = form(trees, torch.arange(len(trees)) + 1)
    width = 1 + max(tree.num_nodes for tree in trees)
    assert batch.tokens.shape == (len(trees), width)
    for row, tree in enumerate(trees):
        parents = tree.parents.tolist()
        assert batch.num_nodes[row] == tree.num_nodes
        for node in range(width):
            is_padding = node > tree.num_nodes
            path = [node] if is_padding else path_to_root(parents, node)
            expected = row + 1 if node == 0 else 0 if is_padding else 99 + node
            assert batch.tokens[row, node] == expected
            assert batch.parents[row, node] == (0 if is_padding or node == 0 else parents[node - 1])
            assert batch.depths[row, node] == len(path) - 1
            assert batch.visible[row, node].nonzero().flatten().tolist() == sorted(path)


def test_the_host_form_is_the_tensor_form_at_full_size() -> None:
    generator = torch.Generator().manual_seed(0)
    parents = (torch.rand(512, generator=generator) * torch.arange(1, 513)).long()
    trees = [DraftTree(torch.arange(n), parents[:n], torch.zeros(n)) for n in (512, 0, 1, 300)]
    host, tensors = pack(trees, torch.arange(4)), pack_tensors(trees, torch.arange(4))
    for name in ("tokens", "parents", "depths", "num_nodes", "visible"):
        assert torch.equal(getattr(host, name), getattr(tensors, name)), name


@every_form
def test_a_batch_of_empty_trees_is_the_anchors_alone(form: Pack) -> None:
    batch = form([DraftTree.empty(), DraftTree.empty()], torch.tensor([3, 4]))
    assert batch.tokens.tolist() == [[3], [4]]
    assert batch.visible.tolist() == [[[True]], [[True]]]


@every_form
def test_an_empty_tree_is_packed_beside_larger_ones(form: Pack) -> None:
    batch = form([chain_of(5, 6), DraftTree.empty(), chain_of(7)], torch.tensor([1, 2, 3]))
    assert batch.tokens.tolist() == [[1, 5, 6], [2, 0, 0], [3, 7, 0]]
    assert batch.depths.tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 0]]
    assert batch.visible[1].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert batch.visible[2].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_trees_and_anchors_must_be_as_many() -> None:
    with pytest.raises(AssertionError, match="1 trees do not go with 2 anchors"):
        pack([chain_of(5)], torch.tensor([1, 2]))


def test_a_packed_batch_does_not_share_memory_with_its_trees() -> None:
    tree, anchors = chain_of(5, 6), torch.tensor([1])
    batch = pack([tree], anchors)
    batch.tokens.zero_()
    assert tree.tokens.tolist() == [5, 6] and anchors.tolist() == [1]


def test_trees_made_in_inference_mode_are_packed() -> None:
    with torch.inference_mode():
        tree = chain_of(5, 6)
    assert pack([tree], torch.tensor([1])).depths.tolist() == [[0, 1, 2]]


def test_a_batch_moves_whole() -> None:
    batch = pack([SEVEN], torch.tensor([10])).to("meta")
    assert isinstance(batch, TreeBatch)
    assert {t.device.type for t in vars(batch).values()} == {"meta"}


def test_packing_one_small_tree_is_quick() -> None:
    tree, anchors = chain_of(*range(32)), torch.tensor([1])
    pack([tree], anchors)  # compiles
    times = []
    for _ in range(50):
        start = time.perf_counter()
        pack([tree], anchors)
        times.append((time.perf_counter() - start) * 1e6)
    print(f"pack, one tree of 32 nodes: {min(times):.0f} us (target 60 us)")
    assert min(times) < 8 * 60  # shapes are checked while testing, which costs more than the packing
