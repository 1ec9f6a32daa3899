"""A small language model as drafter (arXiv 2211.17192, 2302.01318): any causal model of the target's vocabulary.

It reads the text itself, no features, and keeps keys and values of its own. A chain takes a pass for each token, of one
row each. A tree grows level by level, from the likeliest nodes of the last one; each level reads the whole tree again,
for a node may not see its cousins.

Letters: b rows, m nodes of a pass, v vocabulary, w tokens that both know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest
from paceline.kv_cache import SlotCache
from paceline.metrics import StageClock
from paceline.tree import DraftTree, TreeBatch, pack
from paceline.tree.guessed import GuessedTree, SlotGuesses, Start

_SHORT = 16
"""Longer texts are read one by one, without scores of any but their last tokens."""


class Scores(Protocol):
    """What a pass of a model gives."""

    @property
    def logits(self) -> Float[Tensor, "b m v"]: ...


class CausalModel(Protocol):
    """What is asked of the small model: the passes of a target."""

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache: ...
    def prefill(self, cache: SlotCache, row: int, tokens: Sequence[int]) -> Scores: ...
    def verify(self, cache: SlotCache, trees: TreeBatch) -> Scores: ...


@dataclass(frozen=True)
class SmallModelTree:
    """How trees grow: `depth` levels where nobody asks for another number, of each of which the likeliest `num_starts`
    nodes get `width` children."""

    depth: int = 5
    num_starts: int = 1
    width: int = 1

    @property
    def is_chain(self) -> bool:
        """Whether every level has one node."""
        return self.num_starts == self.width == 1


SMALL_MODEL_TREES: Mapping[str, SmallModelTree] = MappingProxyType(
    {"best_first": SmallModelTree(5, 3, 3), "top_k": SmallModelTree(5, 1, 2), "chain": SmallModelTree()}
)
"""By the names of how trees grow."""


@dataclass
class SmallModelState:
    """The model's cache; how many tokens of each row it has read."""

    cache: SlotCache

    def reserve(self, num_rows: int, num_slots: int) -> None:
        self.cache.reserve(num_rows, num_slots)

    def move(self, source: int, destination: int) -> None:
        self.cache.move(source, destination)

    def clear(self, row: int) -> None:
        self.cache.clear(row)

    def save(self, row: int) -> list[Tensor]:
        return self.cache.save(row)

    def restore(self, row: int, saved: Sequence[Tensor], length: int) -> None:
        if saved:
            self.cache.restore(row, saved, min(length, saved[0].shape[2]))


class SmallModelDrafter(Drafter):
    """The model, and how its trees grow.

    `num_words` are the tokens that model and target both know, which are drafted; `num_readable` those that the model
    has embeddings of (a text with others is not drafted for). `max_context` is how many tokens it can read.
    """

    name = "small_model"

    def __init__(
        self,
        model: CausalModel,
        num_words: int,
        num_readable: int,
        max_context: int,
        tree: SmallModelTree | None = None,
        tree_budget: int | None = None,
    ):
        self.model, self.num_words = model, num_words
        self.num_readable: int = num_readable
        self.max_context = max_context
        self.tree = tree or SmallModelTree()
        self.default_block_size = 1 + self.tree.depth
        self.default_tree_budget = tree_budget or (self.tree.depth if self.tree.is_chain else 8)

    @property
    def drafting(self) -> str:
        return f"{self.name} ({self.tree.num_starts} starts, width {self.tree.width})"

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> SmallModelState:
        return SmallModelState(self.model.new_cache(num_rows, num_slots))

    def observe(self, state: SmallModelState, first_row: int, features: Tensor, counts: Sequence[int]) -> None:
        """Nothing: it reads the text when it drafts."""

    @torch.inference_mode()
    def draft(self, state: SmallModelState, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        device = state.cache.device
        depths = [self._depth(request, state.cache.lengths[row]) for row, request in enumerate(requests)]
        if not any(depths):
            return [DraftTree.empty(device) for _ in requests]
        trees = [GuessedTree(depth, by_level=True) for depth in depths]
        logits = self._read(state, requests, depths, clock)
        starts = [[Start(0, 0, 0, 0)] if depth else [] for depth in depths]
        self._add(trees, starts, [row[None] for row in logits], clock)
        kept = state.cache.lengths[:]
        for level in range(1, max(depths)):
            starts = [
                tree.starts(self.tree.num_starts) if depth > level else []
                for tree, depth in zip(trees, depths, strict=True)
            ]
            if not any(starts):
                break
            found = self._chain(state, starts) if self.tree.is_chain else self._level(state, requests, trees, starts)
            clock.drafter_calls += 1
            self._add(trees, starts, found, clock)
        state.cache.lengths[:] = kept  # what was drafted is not the text
        return [tree.best(request.tree_budget, device) for tree, request in zip(trees, requests, strict=True)]

    def _depth(self, request: DraftRequest, read: int) -> int:
        """Levels that are of use and within the model's reach, of whose text it has read some."""
        if not request.wants_nodes or request.block_size <= 1:
            return 0
        if any(token >= self.num_readable for token in request.tokens[read:]):
            return 0
        useful = min(request.block_size - 1, request.max_depth, request.tree_budget)
        return max(0, min(useful, self.max_context - len(request.tokens)))

    def _read(
        self, state: SmallModelState, requests: Sequence[DraftRequest], depths: Sequence[int], clock: StageClock
    ) -> list[Float[Tensor, " v"]]:
        """Read what came since the last draft, of the rows that want nodes; the logits after the last token."""
        rows = enumerate(zip(requests, depths, strict=True))
        waiting = [list(request.tokens[state.cache.lengths[row] :]) if depth else [] for row, (request, depth) in rows]
        logits: list[Tensor] = [torch.empty(0)] * len(requests)
        for row, tokens in enumerate(waiting):
            if len(tokens) > _SHORT:
                state.cache.reserve(len(requests), state.cache.lengths[row] + len(tokens))
                logits[row] = self._words(self.model.prefill(state.cache, row, tokens))[0, -1]
                waiting[row] = []
                clock.drafter_calls += 1
        if any(waiting):
            scores = self._pass(state, [(tokens, list(range(len(tokens) - 1))) for tokens in waiting])
            state.cache.extend([len(tokens) for tokens in waiting])
            clock.drafter_calls += 1
            for row, tokens in enumerate(waiting):
                logits[row] = scores[row, len(tokens) - 1] if tokens else logits[row]
        return logits

    def _chain(self, state: SmallModelState, starts: Sequence[Sequence[Start]]) -> list[Float[Tensor, "m v"]]:
        """The next level of chains: a pass over the last token of each."""
        scores = self._pass(state, [([start.token for start in row], []) for row in starts])
        state.cache.extend([len(row) for row in starts])
        return [scores[row, : len(chosen)] for row, chosen in enumerate(starts)]

    def _level(
        self,
        state: SmallModelState,
        requests: Sequence[DraftRequest],
        trees: Sequence[GuessedTree],
        starts: Sequence[Sequence[Start]],
    ) -> list[Float[Tensor, "m v"]]:
        """The next level of trees: a pass over all nodes so far, below the anchor, which is read again with them."""
        read = state.cache.lengths[:]
        state.cache.lengths = [max(0, length - bool(row)) for length, row in _padded(read, starts)]
        nodes = [tree.nodes() if row else ([], []) for tree, row in zip(trees, starts, strict=True)]
        scores = self._pass(
            state, [([r.tokens[-1], *tokens], parents) for r, (tokens, parents) in zip(requests, nodes, strict=True)]
        )
        state.cache.lengths = read
        return [scores[row, [start.node for start in chosen]] for row, chosen in enumerate(starts)]

    def _pass(self, state: SmallModelState, rows: Sequence[tuple[list[int], list[int]]]) -> Float[Tensor, "b m v"]:
        """One pass over the tokens of each row, the first of them a root: `parents[i]` is that of token i + 1."""
        device = state.cache.device
        anchors = torch.tensor([tokens[0] if tokens else 0 for tokens, _ in rows], device=device)
        trees = [
            DraftTree(
                torch.tensor(tokens[1:], dtype=torch.int64, device=device),
                torch.tensor(parents, dtype=torch.int64, device=device),
                torch.zeros(max(0, len(tokens) - 1), device=device),
            )
            for tokens, parents in rows
        ]
        width = max(len(tokens) for tokens, _ in rows)
        state.cache.reserve(len(rows), max(state.cache.lengths[: len(rows)]) + width)
        return self._words(self.model.verify(state.cache, pack(trees, anchors)))

    def _words(self, scores: Scores) -> Float[Tensor, "b m w"]:
        """Scores of the tokens that both know."""
        return scores.logits[..., : self.num_words].float()

    def _add(
        self,
        trees: Sequence[GuessedTree],
        starts: Sequence[Sequence[Start]],
        logits: Sequence[Float[Tensor, "m v"]],
        clock: StageClock,
    ) -> None:
        """Grow the trees by the likeliest tokens after each start."""
        clock.lap("draft")
        for tree, chosen, scores in zip(trees, starts, logits, strict=True):
            if not chosen:
                continue
            top = scores.topk(min(self.tree.width, self.num_words), -1)
            log_probs = (top.values - scores.logsumexp(-1, keepdim=True)).tolist()
            for start, tokens, values in zip(chosen, top.indices.tolist(), log_probs, strict=True):
                tree.add(SlotGuesses([tokens], [values], [self.tree.width]), start=start.node)
        clock.lap("grow")


def _padded(lengths: Sequence[int], rows: Sequence[Sequence[Start]]) -> list[tuple[int, Sequence[Start]]]:
    """Every row of the cache with what is asked of it: nothing, past those of the batch."""
    return [(length, rows[row] if row < len(rows) else ()) for row, length in enumerate(lengths)]
