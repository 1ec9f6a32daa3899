"""DFlash: a block-diffusion drafter (arXiv 2602.06036), its marginals grown into a tree (DDTree, arXiv 2604.12989).

One pass of the draft network over [anchor, mask, ..., mask] gives every position's marginal at once; how
the tree is grown from them is an argument (`chain` is DFlash, `best_first` is DDTree).

Letters: b rows, n tokens, s block size, l = s - 1 drafted positions, h hidden, f width of the features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paceline.drafters.base import DraftRequest
from paceline.drafters.parallel import ParallelDrafter, default_budget, move_rows
from paceline.kv_cache import LayerShape, SlotCache
from paceline.metrics import StageClock
from paceline.models.dflash import DFlashNetwork
from paceline.tree import DraftTree, Growth, graft, likeliest_end
from paceline.tree.shared_noise import Coupling


@dataclass
class DFlashState:
    """Keys and values of the features, and how each sampled row's marginals meet the noise.

    Features wait in `unread` until a draft wants them: rounds without a draft then cost next to nothing, and the
    network reads what came meanwhile in one go. `read` writes the keys and values of some rows' features.
    """

    cache: SlotCache
    read: Callable[[SlotCache, int, Tensor, Sequence[int]], None]
    couplings: dict[int, Coupling] = field(default_factory=dict)
    unread: dict[int, list[Tensor]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.cache.device

    def catch_up(self, first_row: int, num_rows: int) -> None:
        """Read what waits of these rows."""
        waiting = [self.unread.pop(row, []) for row in range(first_row, first_row + num_rows)]
        counts = [sum(len(features) for features in row) for row in waiting]
        if any(counts):
            width = next(features.shape[1] for row in waiting for features in row)
            rows = [torch.cat(row) if row else torch.empty(0, width, device=self.cache.device) for row in waiting]
            kind = next(row.dtype for row in rows if len(row))
            self.read(self.cache, first_row, pad_sequence([row.to(kind) for row in rows], batch_first=True), counts)

    def reserve(self, num_rows: int, num_slots: int) -> None:
        self.cache.reserve(num_rows, num_slots)

    def move(self, source: int, destination: int) -> None:
        self.cache.move(source, destination)
        if source == destination:
            return
        move_rows(self.couplings, source, destination)
        move_rows(self.unread, source, destination)

    def clear(self, row: int) -> None:
        self.cache.clear(row)
        self.couplings.pop(row, None)
        self.unread.pop(row, None)

    def save(self, row: int) -> list[Tensor]:
        self.catch_up(row, 1)
        return self.cache.save(row)

    def restore(self, row: int, saved: Sequence[Tensor], length: int) -> None:
        self.cache.restore(row, saved, length)


class DFlashDrafter(ParallelDrafter):
    """The network, and how its trees grow."""

    name = "dflash"
    network: DFlashNetwork

    def __init__(
        self,
        network: DFlashNetwork,
        growth: Growth,
        tree_budget: int | None = None,
        shared_noise: bool = True,
        samples: bool = False,
    ):
        super().__init__(growth, shared_noise, samples)
        self.network = network.eval()
        config = network.config
        self.feature_layers = tuple(config.target_layer_ids)
        self.default_block_size = config.block_size
        self.default_tree_budget = tree_budget or default_budget(config.block_size, network.norm.weight.device)

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> DFlashState:
        config = self.network.config
        shape = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim)
        cache = SlotCache([shape] * config.num_hidden_layers, num_rows, num_slots, self.network.dtype, device)
        return DFlashState(cache, self._read)

    def observe(
        self, state: DFlashState, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]
    ) -> None:
        for row, count in enumerate(counts):
            state.unread.setdefault(first_row + row, []).append(features[row, :count])

    @torch.inference_mode()
    def _read(self, cache: SlotCache, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]) -> None:
        """Write the keys and values of features that follow those in the cache."""
        num_rows, width = features.shape[:2]
        # a row that reads much may stand beside one that is long: the pass is as wide as both
        cache.reserve(first_row + num_rows, max(cache.lengths[first_row : first_row + num_rows]) + width)
        cache.open(first_row, num_rows, width)
        starts = torch.tensor(cache.starts, device=features.device)
        positions = starts[:, None] + torch.arange(width, device=features.device)
        context = self.network.context(features)
        for index, layer in enumerate(self.network.layers):
            keys, values = layer.self_attn.context_kv(context, positions)
            cache.append(index, keys, values)
        cache.extend(counts)

    def _catch_up(self, state: DFlashState, num_rows: int) -> None:
        state.catch_up(0, num_rows)

    @torch.inference_mode()
    def extend(
        self,
        state: DFlashState,
        requests: Sequence[DraftRequest],
        trees: Sequence[DraftTree],
        chosen: Sequence[bool],
        clock: StageClock,
    ) -> list[DraftTree]:
        """A second block, whose anchor is the likeliest node at the end of the first one. It sees the features that
        there are, those before the first block, at its own distance from them."""
        found = list(trees)
        asked = {request.block_size for request, wanted in zip(requests, chosen, strict=True) if wanted}
        for block_size in sorted(asked):
            ends = self._ends(state, requests, trees, chosen, block_size)
            if not ends:
                continue
            rows, depth = list(ends), block_size - 1
            anchors = [int(trees[row].tokens[node - 1]) for row, node in ends.items()]
            hidden = self._hidden(state, rows, anchors, block_size, depth)
            width = max(self._width(requests[row]) for row in rows)
            clock.drafter_calls += 1
            clock.lap("draft")
            for (row, node), marginals in zip(ends.items(), self._marginals(hidden, width), strict=True):
                request = requests[row]
                branch = self.growth(self._ranked(state, row, request, marginals, depth), request.tree_budget)
                found[row] = graft(trees[row], node, branch, request.tree_budget)
            clock.lap("grow")
        return found

    def _ends(
        self,
        state: DFlashState,
        requests: Sequence[DraftRequest],
        trees: Sequence[DraftTree],
        chosen: Sequence[bool],
        block_size: int,
    ) -> dict[int, int]:
        """The node from which each row's second block starts, where it has one and positions reach."""
        ends = {}
        for row, (request, tree, wanted) in enumerate(zip(requests, trees, chosen, strict=True)):
            asked = wanted and request.block_size == block_size and request.max_depth >= block_size and not self.samples
            end = likeliest_end(tree, block_size - 1) if asked else None
            if end is not None and self._reaches(state, row, 2 * block_size - 1):
                ends[row] = end[0]
        return ends

    def _reaches(self, state: DFlashState, row: int, block_size: int) -> bool:
        return state.cache.lengths[row] + block_size <= self.network.config.max_position_embeddings

    def _hidden(
        self, state: DFlashState, rows: list[int], anchors: list[int], block_size: int, distance: int = 0
    ) -> Float[Tensor, "b l h"]:
        """`distance`: positions between the last token that was read and the anchor, less one."""
        cache = state.cache
        device = cache.device
        block = torch.full((len(rows), block_size), self.network.config.mask_token_id, device=device)
        block[:, 0] = torch.tensor(anchors, device=device)
        lengths = torch.tensor([cache.lengths[r] for r in rows], device=device)
        positions = lengths[:, None] + distance + torch.arange(block_size, device=device)
        context = cache.committed(rows)
        span = context[0][0].shape[2]
        mask = None
        if len(rows) > 1:
            visible = torch.arange(span, device=device) < lengths[:, None]
            mask = visible[:, None, None].expand(-1, 1, block_size, -1)
        return self.network.block(self.network.embed(block), positions, context, mask)[:, 1:]
