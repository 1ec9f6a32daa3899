"""A tree drawn as text."""

from __future__ import annotations

import torch

from paceline.tree import DraftTree, render_tree

WORDS = {1: "cat", 2: "dog", 3: "sat", 4: "ran", 5: "down", 6: "cow"}


def test_children_stand_below_their_parent_and_accepted_nodes_are_marked() -> None:
    tree = DraftTree(
        tokens=torch.tensor([1, 2, 3, 4, 5, 6]),
        parents=torch.tensor([0, 0, 1, 1, 3, 0]),
        log_probs=torch.zeros(6),
    )
    assert render_tree(tree, WORDS.__getitem__, {1, 3}, "the") == [
        "the",
        "├─ cat ✓",
        "│  ├─ sat ✓",
        "│  │  └─ down",
        "│  └─ ran",
        "├─ dog",
        "└─ cow",
    ]


def test_a_tree_of_no_nodes_is_its_root() -> None:
    assert render_tree(DraftTree.empty(), str, set(), "the") == ["the"]


def test_a_long_chain_is_drawn_whole() -> None:
    tree = DraftTree(torch.arange(2000), torch.arange(2000), torch.zeros(2000))
    lines = render_tree(tree, str, set(), "root")
    assert len(lines) == 2001
    assert lines[3] == " " * 6 + "└─ 2"
