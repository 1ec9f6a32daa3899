"""Rank-guided growth by hand, and its promises on random guesses."""

import math

import pytest
import torch

from paceline.tree.guessed import GuessedTree, SlotGuesses

CPU = torch.device("cpu")


def guesses(siblings, first=10, probs=(0.5, 0.25, 0.125)):
    """Slot k's candidates are first + 10 k, + 1, + 2."""
    tokens = [[first + 10 * k + i for i in range(3)] for k in range(len(siblings))]
    return SlotGuesses(tokens, [[math.log(p) for p in probs]] * len(siblings), siblings)


def paths(tree):
    """Every node as its path of tokens, in the tree's order."""
    tokens, parents = [None, *tree.tokens.tolist()], [0, *tree.parents.tolist()]

    def path(node):
        return (*path(parents[node]), tokens[node]) if node else ()

    return [path(node) for node in range(1, len(tokens))]


def test_the_buckets_say_how_many_siblings_and_where_the_path_ends():
    tree = GuessedTree(20)
    tree.add(guesses([1, 3, 0, 1]))
    assert set(paths(tree.best(60, CPU))) == {(10,), (10, 20), (10, 21), (10, 22)}


def test_blocks_may_start_at_the_paths_end_and_at_alternatives_likeliest_first():
    tree = GuessedTree(20)
    tree.add(guesses([2, 1]), block=7)
    found = [(start.token, start.block, start.slot) for start in tree.starts(5)]
    assert found == [(11, 7, 0), (20, 7, 1)]  # 0.25 and 0.5 * 0.5: what came first goes first where they tie
    assert tree.starts(5) == []


def test_a_later_block_goes_on_from_its_node():
    tree = GuessedTree(20)
    tree.add(guesses([1, 1]))
    (end,) = tree.starts(4)
    tree.add(guesses([2, 0], first=50), block=1, start=end.node)
    assert paths(tree.best(60, CPU)) == [(10,), (10, 20), (10, 20, 50), (10, 20, 51)]
    assert [start.block for start in tree.starts(4)] == [1, 1]


def test_the_likeliest_nodes_stay():
    tree = GuessedTree(20)
    tree.add(guesses([3, 3, 3]))
    found = tree.best(4, CPU)
    assert found.log_probs.exp().tolist() == pytest.approx([0.5, 0.25, 0.25, 0.125])
    found.validate()


def test_nothing_is_deeper_than_asked_and_a_block_may_expect_nothing():
    tree = GuessedTree(2)
    tree.add(guesses([1, 2, 2]))
    assert max(map(len, paths(tree.best(60, CPU)))) == 2 and tree.starts(4) == []
    empty = GuessedTree(5)
    empty.add(guesses([0, 1]))
    assert empty.best(60, CPU).num_nodes == 0 and empty.starts(4) == []


def test_what_cannot_occur_is_left_out():
    tree = GuessedTree(5)
    tree.add(SlotGuesses([[1, 2], [3, 4]], [[0.0, -math.inf], [-math.inf, -math.inf]], [2, 2]))
    assert paths(tree.best(60, CPU)) == [(1,)]


def test_random_trees_keep_the_promises_of_draft_trees():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        tree, block = GuessedTree(12), 0
        starts = [0]
        for _ in range(3):
            for start in starts:
                log_probs, tokens = torch.randn(4, 30, generator=generator).log_softmax(-1).topk(10)
                siblings = torch.randint(0, 11, (4,), generator=generator).tolist()
                tree.add(SlotGuesses(tokens.tolist(), log_probs.tolist(), siblings), block, start)
                block += 1
            starts = [start.node for start in tree.starts(4)]
        budget = int(torch.randint(1, 60, (1,), generator=generator))
        found = tree.best(budget, CPU)
        found.validate()
        assert found.num_nodes <= budget
        assert found.log_probs.tolist() == sorted(found.log_probs.tolist(), reverse=True)
