"""Drafters whose networks go on from their own states, over a cache: what SpecBlock and EAGLE-3 share.

A round's first block stands at the last position that the target has read, and its forward also reads the positions
that came since the last one. Later blocks start from drafted nodes, all of one stage in one forward. So a draft of M
blocks takes M passes of the network, however wide the tree.

Letters: b rows, n tokens, f width of the features, k slots of a block, m blocks, h hidden, w candidates of a slot.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paceline.drafters.base import Drafter, DraftRequest
from paceline.kv_cache import LayerShape, SlotCache
from paceline.metrics import StageClock
from paceline.models.unrolled import Blocks, UnrolledNetwork, visible_rows
from paceline.tree import DraftTree
from paceline.tree.guessed import GuessedTree, SlotGuesses, Start

_PIECE = 1024
"""Rows that are read in one forward: its mask has so many times so many."""


@dataclass
class UnrolledState:
    """Keys and values of every slot of the positions that were read, and the features that wait to be.

    A position's slots are read together with the token after it, so they wait until a draft knows it. A position at the
    end of a restored row keeps the slots of the text that it was saved from.
    """

    cache: SlotCache
    slots: int
    room: int
    """Rows of later blocks."""
    unread: dict[int, list[Tensor]] = field(default_factory=dict)

    def num_positions(self, row: int) -> int:
        """Positions whose slots are in the cache."""
        return self.cache.lengths[row] // self.slots

    def reserve(self, num_rows: int, num_slots: int) -> None:
        self.cache.reserve(num_rows, num_slots * self.slots + self.room)

    def move(self, source: int, destination: int) -> None:
        self.cache.move(source, destination)
        if source == destination:
            return
        self.unread.pop(destination, None)
        if source in self.unread:
            self.unread[destination] = self.unread.pop(source)

    def clear(self, row: int) -> None:
        self.cache.clear(row)
        self.unread.pop(row, None)

    def save(self, row: int) -> tuple[int, list[Tensor], list[Tensor]]:
        return self.num_positions(row), self.cache.save(row), list(self.unread.get(row, []))

    def restore(self, row: int, saved: tuple[int, list[Tensor], list[Tensor]], length: int) -> None:
        positions, rows, unread = saved
        self.cache.restore(row, rows, min(positions, length) * self.slots)
        if length > positions and unread:
            self.unread[row] = [torch.cat(unread)[: length - positions]]

    def take_unread(self, row: int) -> Tensor:
        """The features of a row that wait, of which there are some; they wait no more."""
        return torch.cat(self.unread.pop(row))


class UnrolledDrafter(Drafter):
    """The network behind the loop's interface. A block size of s asks for paths of s - 1 tokens, and for as many blocks
    after one another as reach them."""

    network: UnrolledNetwork
    num_starts: int
    """Nodes from which the blocks of a stage start, at most."""

    def __init__(self, network: UnrolledNetwork, num_blocks: int, num_starts: int, tree_budget: int):
        self.network, self.num_blocks, self.num_starts = network.eval(), num_blocks, num_starts
        self.feature_layers = tuple(self.network.config.target_layer_ids)
        self.default_block_size = 1 + num_blocks * network.num_slots
        self.default_tree_budget = tree_budget

    @abstractmethod
    def _new_tree(self, max_depth: int) -> GuessedTree:
        """What grows."""

    @abstractmethod
    def _guesses(self, hidden: Float[Tensor, "b m k h"]) -> list[list[SlotGuesses]]:
        """What every block says."""

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> UnrolledState:
        config = self.network.config
        shape = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim)
        slots = self.network.num_slots
        room = (self.num_blocks - 1) * self.num_starts * slots
        cache = SlotCache(
            [shape] * config.num_hidden_layers, num_rows, num_slots * slots + room, self.network.dtype, device
        )
        return UnrolledState(cache, slots, room)

    def observe(
        self, state: UnrolledState, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]
    ) -> None:
        last = self.network.config.max_position_embeddings
        for row, count in enumerate(counts, start=first_row):
            waiting = state.unread.setdefault(row, [])
            if state.num_positions(row) + sum(map(len, waiting)) < last:  # past it nothing is drafted any more
                waiting.append(features[row - first_row, :count].clone())

    @torch.inference_mode()
    def draft(self, state: UnrolledState, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        device = state.cache.device
        wanting = [self._num_blocks(request) for request in requests]
        if not any(wanting):
            return [DraftTree.empty(device) for _ in requests]
        trees = [self._new_tree(min(request.max_depth, request.block_size - 1)) for request in requests]
        blocks = self._first(state, requests, clock)
        kept = state.cache.lengths[:]
        starts = [[Start(0, 0, 0, 0)] if count else [] for count in wanting]
        self._add(trees, starts, 0, blocks, clock)
        for stage in range(2, max(wanting) + 1):
            starts = [
                tree.starts(self.num_starts) if count >= stage else []
                for tree, count in zip(trees, wanting, strict=True)
            ]
            if not any(starts):
                break
            earlier = blocks.hidden.shape[1]
            blocks = self._later(state.cache, blocks, starts)
            clock.drafter_calls += 1
            self._add(trees, starts, earlier, blocks, clock)
        state.cache.lengths[:] = kept  # the rows of later blocks are not those of the text
        return [tree.best(request.tree_budget, device) for tree, request in zip(trees, requests, strict=True)]

    def _add(
        self,
        trees: Sequence[GuessedTree],
        starts: Sequence[Sequence[Start]],
        first_block: int,
        blocks: Blocks,
        clock: StageClock,
    ) -> None:
        """Grow the trees by the blocks from `first_block` on."""
        guesses = self._guesses(blocks.hidden[:, first_block:])
        clock.lap("draft")
        for tree, chosen, said in zip(trees, starts, guesses, strict=True):
            for number, (start, block) in enumerate(zip(chosen, said, strict=False), start=first_block):
                tree.add(block, number, start.node)
        clock.lap("grow")

    def _num_blocks(self, request: DraftRequest) -> int:
        """Blocks after one another that a request asks for, as far as positions reach and nodes can be of use."""
        if not request.wants_nodes or request.block_size <= 1:
            return 0
        slots, last = self.network.num_slots, self.network.config.max_position_embeddings
        useful = min(request.block_size - 1, request.max_depth, request.tree_budget)
        return max(0, min(math.ceil(useful / slots), (last - len(request.tokens)) // slots))

    def _first(self, state: UnrolledState, requests: Sequence[DraftRequest], clock: StageClock) -> Blocks:
        """Read what waits of every row that wants nodes, long texts in pieces; the blocks at their last positions."""
        waiting = [state.take_unread(row) if self._num_blocks(r) else None for row, r in enumerate(requests)]
        some = next(features for features in waiting if features is not None)
        rest = [some[:0] if features is None else features for features in waiting]
        most = max(1, _PIECE // self.network.num_slots)
        while max(map(len, rest)) > most:
            pieces = [features[: most if len(features) > most else 0] for features in rest]
            rest = [features[len(piece) :] for features, piece in zip(rest, pieces, strict=True)]
            self._read(state, requests, pieces)
            clock.drafter_calls += 1
        clock.drafter_calls += 1
        return self._read(state, requests, rest)

    def _read(
        self, state: UnrolledState, requests: Sequence[DraftRequest], unread: Sequence[Float[Tensor, "n f"]]
    ) -> Blocks:
        """Read the next positions of every row; the blocks at the last of them."""
        cache, size, device = state.cache, state.slots, state.cache.device
        starts, counts = [state.num_positions(row) for row in range(len(requests))], list(map(len, unread))
        width = max(counts)
        tokens = torch.zeros(len(requests), width, dtype=torch.int64)
        for row, (request, start, count) in enumerate(zip(requests, starts, counts, strict=True)):
            tokens[row, :count] = torch.tensor(request.tokens[start + 1 : start + 1 + count])
        first = torch.tensor(starts, device=device)
        positions = first[:, None] + torch.arange(width, device=device)
        # a row that reads much may stand beside one that is long: the pass is as wide as both
        cache.reserve(len(requests), max(cache.lengths[: len(requests)]) + width * size)
        cache.open(0, len(requests), width * size)
        visible = visible_rows(first * size, width * size, cache.span)
        rows, last = (
            torch.arange(len(requests), device=device)[:, None],
            torch.tensor(counts, device=device)[:, None] - 1,
        )
        seen = visible[rows[..., None], 0, last[..., None] * size + torch.arange(size, device=device)]
        features = pad_sequence(list(unread), batch_first=True)
        blocks = self.network.blocks(features, tokens.to(device), positions, cache.append, visible, last, seen)
        cache.extend([count * size for count in counts])
        return replace(blocks, seen=seen[..., : max(cache.lengths[: len(requests)])])

    def _later(self, cache: SlotCache, blocks: Blocks, starts: Sequence[Sequence[Start]]) -> Blocks:
        """All blocks, with those of one stage more: as many in each row as any row has. Their slots stand in the cache
        past all that are seen."""
        most, device = max(map(len, starts)), cache.device
        chosen = torch.tensor(
            [
                [(start.block, start.slot, start.token) for start in row] + [(0, 0, 0)] * (most - len(row))
                for row in starts
            ],
            device=device,
        )
        parents, slots, tokens = chosen.unbind(-1)
        seen, width = blocks.seen.shape[-1], most * self.network.num_slots
        cache.reserve(len(starts), seen + width)
        cache.lengths[: len(starts)] = [seen] * len(starts)
        cache.open(0, len(starts), width)
        new = self.network.later(blocks, parents, slots, tokens, cache.append)
        return blocks.then(new)
