"""A draft tree as lines of text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection

from paceline.tree.draft_tree import DraftTree

ACCEPTED_MARK = " ✓"


def render_tree(tree: DraftTree, label: Callable[[int], str], accepted: Collection[int], root_label: str) -> list[str]:
    """One line a node, children below their parent in the tree's order.

        the
        ├─ cat ✓
        │  └─ sat ✓
        └─ dog

    `label` turns a token id into text of one line; `accepted` holds nodes in the index space of the pass.
    """
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    children: list[list[int]] = [[] for _ in range(tree.num_nodes + 1)]
    for node, parent in enumerate(parents, start=1):
        children[parent].append(node)
    lines = [root_label]
    waiting = _with_indents(children[0], "")
    while waiting:
        node, branch, indent = waiting.pop()
        mark = ACCEPTED_MARK if node in accepted else ""
        lines.append(f"{branch}{label(tokens[node - 1])}{mark}")
        waiting += _with_indents(children[node], indent)
    return lines


def _with_indents(siblings: list[int], indent: str) -> list[tuple[int, str, str]]:
    """(node, the start of its own line, the indent of the lines below it), last sibling first."""
    return [
        (
            node,
            indent + ("└─ " if node == siblings[-1] else "├─ "),
            indent + ("   " if node == siblings[-1] else "│  "),
        )
        for node in reversed(siblings)
    ]
