"""Trees that grow stage by stage from what a network says of its own drafts.

SpecBlock's dynamic tree (arXiv 2605.07243) has as many siblings as the target's token is expected to need. A block is a
chain of slots. At every slot the path goes on with the likeliest token, beside which stand as many
alternatives as the slot's rank bucket asks for; a slot that asks for none ends the path. New blocks start from the end
of the path and from alternatives, which have no children yet. EAGLE's (arXiv 2406.16858) has blocks of one slot, each
of which asks for as many, and goes on from the likeliest nodes of the last level alone.

    root ── the ─┬─ cat ─── sat      buckets: 1, 2-4 (two siblings here), 1; the next slot expects nothing
                 └─ dog              blocks may start at `sat` and at `dog`

Letters: k slots of a block, w candidates of a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.tree.draft_tree import DraftTree


@dataclass(frozen=True)
class SlotGuesses:
    """What one block says: for each slot its likeliest tokens (target ids) with their log-probs, best first, and how
    many of them to try. Plain lists: they are small."""

    tokens: list[list[int]]
    log_probs: list[list[float]]
    siblings: Sequence[int]


@dataclass(frozen=True)
class Start:
    """A node without children, from which a block may start: its number in the tree, its token, and the block and slot
    that drafted it."""

    node: int
    token: int
    block: int
    slot: int


class GuessedTree:
    """One sequence's tree while it grows; node 0 is the root, and nodes are numbered as they come.

    `by_level`: blocks start from what was added last, and what was passed over once is not asked again.
    """

    def __init__(self, max_depth: int, by_level: bool = False) -> None:
        self._max_depth, self._by_level = max_depth, by_level
        self._tokens, self._parents = [0], [0]
        self._log_probs, self._depths = [0.0], [0]
        self._open: list[Start] = []

    def add(self, guesses: SlotGuesses, block: int = 0, start: int = 0) -> None:
        """A block, by its number, that starts from a node."""
        node, end = start, None
        for slot, count in enumerate(guesses.siblings):
            if not count or self._depths[node] >= self._max_depth:
                break
            first = self._add_slot(node, guesses, block, slot, count)
            if first is None:
                break
            node = first
            end = Start(node, self._tokens[node], block, slot)
        if end is not None:
            self._open.append(end)

    def _add_slot(self, parent: int, guesses: SlotGuesses, block: int, slot: int, count: int) -> int | None:
        """The slot's candidates below `parent`; the likeliest one's node, if it can occur."""
        first, depth, before = len(self._tokens), self._depths[parent] + 1, self._log_probs[parent]
        candidates = zip(guesses.tokens[slot][:count], guesses.log_probs[slot], strict=False)
        for rank, (token, log_prob) in enumerate(candidates):
            if log_prob == -torch.inf:
                break
            if rank:
                self._open.append(Start(len(self._tokens), token, block, slot))
            self._tokens.append(token)
            self._parents.append(parent)
            self._log_probs.append(before + min(0.0, log_prob))
            self._depths.append(depth)
        return first if len(self._tokens) > first else None

    def nodes(self) -> tuple[list[int], list[int]]:
        """Tokens and parents of all nodes below the root, in the order of their numbers."""
        return self._tokens[1:], self._parents[1:]

    def starts(self, count: int) -> list[Start]:
        """The likeliest of the nodes at which blocks may start, `count` at most; each is given once."""
        deep_enough = [start for start in self._open if self._depths[start.node] < self._max_depth]
        deep_enough.sort(key=lambda start: -self._log_probs[start.node])
        chosen, self._open = deep_enough[:count], [] if self._by_level else deep_enough[count:]
        return chosen

    def best(self, budget: int, device: torch.device) -> DraftTree:
        """The `budget` likeliest nodes, likeliest first: a parent is never less likely than its child, and came
        before it where they tie."""
        order = sorted(range(1, len(self._tokens)), key=lambda node: -self._log_probs[node])[:budget]
        number = {0: 0} | {node: place for place, node in enumerate(order, start=1)}
        return DraftTree(
            torch.tensor([self._tokens[node] for node in order], dtype=torch.int64, device=device),
            torch.tensor([number[self._parents[node]] for node in order], dtype=torch.int64, device=device),
            torch.tensor([self._log_probs[node] for node in order], dtype=torch.float32, device=device),
        )
