"""SpecBlock: dependent blocks, and a tree that is as wide as a rank head expects it to need (arXiv 2605.07243).

A round's first block stands at the last position that the target has read, and its forward also reads the positions
that came since the last one. Later blocks start from drafted nodes, all of one stage in one forward. So a draft of M
blocks takes M passes of the network, however wide the tree.

Letters: b rows, n tokens, f width of the features, k slots of a block, m blocks, h hidden, w candidates of a slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paceline.drafters.base import Drafter, DraftRequest
from paceline.errors import InputError
from paceline.kv_cache import LayerShape, SlotCache
from paceline.metrics import StageClock
from paceline.models.specblock import NUM_TOP, Blocks, SpecBlockNetwork, rank_statistics, visible_rows
from paceline.models.specblock_config import RANK_CLASSES
from paceline.tree import DraftTree
from paceline.tree.rank_guided import RankGuidedTree, SlotGuesses, Start

NUM_BLOCKS, NUM_STARTS = 2, 4
SIBLINGS = (1, 4, 10, 0)
"""For each rank bucket (1, 2-4, 5-10, beyond): tokens of a slot that are tried."""
STATIC_WIDTH = 3
_MOST = 64
_PIECE = 256
"""Positions that are read in one forward: its mask has so many times so many, times the slots squared."""
_BUDGET_CPU, _BUDGET = 11, 60
"""Nodes of a tree; on a CPU every row of a pass costs."""


@dataclass(frozen=True)
class SpecBlockTreeConfig:
    """How trees grow.

    `num_blocks` (M) blocks come after one another where nobody asks for another number; those of one stage start from
    `num_starts` nodes at most; `siblings` are the tokens to try by rank bucket. `width` makes the tree static: as many
    siblings at every slot, whatever the rank head says.

    Raises:
        InputError: sizes that no tree has.
    """

    num_blocks: int = NUM_BLOCKS
    num_starts: int = NUM_STARTS
    siblings: tuple[int, ...] = SIBLINGS
    width: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_blocks", "num_starts"):
            if not 1 <= getattr(self, name) <= _MOST:
                raise InputError(f"{name} is {getattr(self, name)}, but must be from 1 to {_MOST}.")
        if len(self.siblings) != RANK_CLASSES or not all(0 <= count <= NUM_TOP for count in self.siblings):
            raise InputError(
                f"siblings is {self.siblings}, but must hold {RANK_CLASSES} numbers, each from 0 to {NUM_TOP}."
            )
        if self.width is not None and not 1 <= self.width <= NUM_TOP:
            raise InputError(f"width is {self.width}, but must be from 1 to {NUM_TOP}.")


SPECBLOCK_TREES: Mapping[str, SpecBlockTreeConfig] = MappingProxyType(
    {
        "best_first": SpecBlockTreeConfig(),
        "top_k": SpecBlockTreeConfig(width=STATIC_WIDTH),
        "chain": SpecBlockTreeConfig(num_starts=1, width=1),
    }
)
"""By the names of how trees grow: as the rank head says, as wide at every slot, not at all."""


def specblock_tree(
    name: str, siblings: tuple[int, ...] | None = None, num_starts: int | None = None
) -> SpecBlockTreeConfig:
    """How trees of a name grow, with other siblings or starts where they are given.

    Raises:
        InputError: siblings by rank for a tree that asks no rank head, or sizes that no tree has.
    """
    tree = SPECBLOCK_TREES[name]
    if siblings is not None and tree.width is not None:
        raise InputError(f"siblings go by what the rank head says, but tree {name!r} does not ask it; leave one out.")
    return replace(
        tree, siblings=siblings or tree.siblings, num_starts=tree.num_starts if num_starts is None else num_starts
    )


@dataclass
class SpecBlockState:
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
        if length > positions:
            self.unread[row] = [torch.cat(unread)[: length - positions]]

    def take_unread(self, row: int) -> Tensor:
        """The features of a row that wait, of which there are some; they wait no more."""
        return torch.cat(self.unread.pop(row))


class SpecBlockDrafter(Drafter):
    """The network behind the loop's interface. A block size of s asks for paths of s - 1 tokens, and for as many blocks
    after one another as reach them."""

    name = "specblock"

    def __init__(
        self,
        network: SpecBlockNetwork,
        tree: SpecBlockTreeConfig | None = None,
        tree_budget: int | None = None,
    ):
        self.network, self.tree = network.eval(), tree or SpecBlockTreeConfig()
        config = network.config
        self.feature_layers = tuple(config.target_layer_ids)
        self.default_block_size = 1 + self.tree.num_blocks * config.num_slots
        on_cpu = network.norm.weight.device.type == "cpu"
        self.default_tree_budget = tree_budget or (_BUDGET_CPU if on_cpu else _BUDGET)

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> SpecBlockState:
        config = self.network.config
        shape = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim)
        slots = config.num_slots
        room = (self.tree.num_blocks - 1) * self.tree.num_starts * slots
        cache = SlotCache(
            [shape] * config.num_hidden_layers, num_rows, num_slots * slots + room, self.network.dtype, device
        )
        return SpecBlockState(cache, slots, room)

    def observe(
        self, state: SpecBlockState, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]
    ) -> None:
        for row, count in enumerate(counts):
            state.unread.setdefault(first_row + row, []).append(features[row, :count].clone())

    @property
    def drafting(self) -> str:
        shape = f"{self.tree.num_starts} starts" + (f", width {self.tree.width}" if self.tree.width else "")
        return f"{self.name} ({shape})"

    @torch.inference_mode()
    def draft(self, state: SpecBlockState, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        device = state.cache.device
        wanting = [self._num_blocks(request) for request in requests]
        if not any(wanting):
            return [DraftTree.empty(device) for _ in requests]
        trees = [RankGuidedTree(min(request.max_depth, request.block_size - 1)) for request in requests]
        blocks = self._first(state, requests, clock)
        kept = state.cache.lengths[:]
        starts = [[Start(0, 0, 0, 0)] if count else [] for count in wanting]
        self._add(trees, starts, 0, blocks, clock)
        for stage in range(2, max(wanting) + 1):
            starts = [
                tree.starts(self.tree.num_starts) if count >= stage else []
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
        trees: Sequence[RankGuidedTree],
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
        slots, last = self.network.config.num_slots, self.network.config.max_position_embeddings
        useful = min(request.block_size - 1, request.max_depth, request.tree_budget)
        return max(0, min(math.ceil(useful / slots), (last - len(request.tokens)) // slots))

    def _first(self, state: SpecBlockState, requests: Sequence[DraftRequest], clock: StageClock) -> Blocks:
        """Read what waits of every row that wants nodes, long texts in pieces; the blocks at their last positions."""
        waiting = [state.take_unread(row) if self._num_blocks(r) else None for row, r in enumerate(requests)]
        some = next(features for features in waiting if features is not None)
        rest = [some[:0] if features is None else features for features in waiting]
        while max(map(len, rest)) > _PIECE:
            pieces = [features[: _PIECE if len(features) > _PIECE else 0] for features in rest]
            rest = [features[len(piece) :] for features, piece in zip(rest, pieces, strict=True)]
            self._read(state, requests, pieces)
            clock.drafter_calls += 1
        clock.drafter_calls += 1
        return self._read(state, requests, rest)

    def _read(
        self, state: SpecBlockState, requests: Sequence[DraftRequest], unread: Sequence[Float[Tensor, "n f"]]
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
        seen, width = blocks.seen.shape[-1], most * self.network.config.num_slots
        cache.reserve(len(starts), seen + width)
        cache.lengths[: len(starts)] = [seen] * len(starts)
        cache.open(0, len(starts), width)
        new = self.network.later(blocks, parents, slots, tokens, cache.append)
        return blocks.then(new)

    def _guesses(self, hidden: Float[Tensor, "b m k h"]) -> list[list[SlotGuesses]]:
        """What every block says."""
        network = self.network
        logits = network.slot_logits(hidden).float()
        log_probs = logits.log_softmax(-1)
        top = log_probs.topk(NUM_TOP, -1)
        tokens, chances = network.draft_to_target(top.indices).tolist(), top.values.tolist()
        siblings = self._siblings(hidden, log_probs, top.values)
        return [
            [SlotGuesses(*block) for block in zip(*row, strict=True)]
            for row in zip(tokens, chances, siblings, strict=True)
        ]

    def _siblings(self, hidden: Tensor, log_probs: Tensor, top: Tensor) -> list[list[list[int]]]:
        if self.tree.width is not None:
            return torch.full(hidden.shape[:-1], self.tree.width).tolist()
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        ranks = self.network.rank_logits(hidden, rank_statistics(top, entropy)).argmax(-1)
        return torch.tensor(self.tree.siblings, device=ranks.device)[ranks].tolist()
