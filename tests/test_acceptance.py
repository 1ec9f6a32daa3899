"""The match rule against a walk down the tree, over every target and every small tree."""

import random
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.acceptance import match, matched_nodes
from paceline.tree import DraftTree, pack

#   root -> 5 -> 7 ; root -> 6 -> 8 -> 9
FORK = DraftTree(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 0, 1, 2, 4]), torch.zeros(5))


def walk(tree: DraftTree, target_tokens: list[int]) -> tuple[list[int], list[int]]:
    """(path, emitted tokens): step into the child that bears the target's token, until there is none."""
    children = {(int(p), int(t)): i for i, (p, t) in enumerate(zip(tree.parents, tree.tokens, strict=True), start=1)}
    path, node = [], 0
    while (node, target_tokens[node]) in children:
        node = children[node, target_tokens[node]]
        path.append(node)
    return path, [target_tokens[i] for i in [0, *path]]


def random_tree(num_nodes: int, chooser: random.Random) -> DraftTree:
    """Nodes under random parents; siblings differ."""
    taken: list[tuple[int, int]] = []
    while len(taken) < num_nodes:
        child = (chooser.randint(0, len(taken)), chooser.randrange(4))
        if child not in taken:
            taken.append(child)
    parents, tokens = [p for p, _ in taken], [t for _, t in taken]
    return DraftTree(
        torch.tensor(tokens, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64), torch.zeros(num_nodes)
    )


@pytest.mark.parametrize(
    ("targets", "path", "tokens"),
    [
        ([6, 0, 8, 0, 9, 3], [2, 4, 5], [6, 8, 9, 3]),
        ([6, 7, 9, 0, 9, 3], [2], [6, 9]),
        ([5, 8, 8, 1, 9, 3], [1], [5, 8]),
        ([7, 7, 8, 1, 9, 3], [], [7]),
    ],
)
def test_the_path_of_the_targets_own_tokens_is_kept_and_its_next_one_added(targets, path, tokens):
    accepted = match(pack([FORK], torch.tensor([1])), torch.tensor([targets]))
    assert (accepted.paths, accepted.tokens) == ([path], [tokens])


def test_every_target_on_a_small_tree_equals_the_walk():
    #   root -> 0 -> 0 ; root -> 1 -> 1
    tree = DraftTree(torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 2]), torch.zeros(4))
    every = [list(targets) for targets in product(range(3), repeat=5)]
    accepted = match(pack([tree] * len(every), torch.zeros(len(every), dtype=torch.int64)), torch.tensor(every))
    for targets, path, tokens in zip(every, accepted.paths, accepted.tokens, strict=True):
        assert (path, tokens) == walk(tree, targets)


def test_ragged_batches_equal_the_walk_of_each_tree_and_padding_is_never_kept():
    chooser = random.Random(1)
    trees = [random_tree(size, chooser) for size in [0, 1, 2, 5, 9, 17, 30] * 8]
    packed = pack(trees, torch.zeros(len(trees), dtype=torch.int64))
    targets = torch.randint(0, 4, packed.tokens.shape, generator=torch.Generator().manual_seed(1))
    accepted = match(packed, targets)
    kept = matched_nodes(packed, targets)
    assert sum(map(len, accepted.paths)) > 20
    for i, tree in enumerate(trees):
        assert (accepted.paths[i], accepted.tokens[i]) == walk(tree, targets[i].tolist())
        assert not kept[i, tree.num_nodes + 1 :].any()


@given(st.integers(0, 10**6), st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_any_batch_equals_the_walk_of_each_tree(seed, sizes):
    chooser = random.Random(seed)
    trees = [random_tree(size, chooser) for size in sizes]
    packed = pack(trees, torch.zeros(len(trees), dtype=torch.int64))
    targets = torch.randint(0, 4, packed.tokens.shape, generator=torch.Generator().manual_seed(seed))
    accepted = match(packed, targets)
    for i, tree in enumerate(trees):
        assert (accepted.paths[i], accepted.tokens[i]) == walk(tree, targets[i].tolist())
