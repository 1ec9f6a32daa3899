"""DFlash: a block-diffusion drafter (arXiv 2602.06036), its marginals grown into a tree (DDTree, arXiv 2604.12989).

One pass of the draft network over [anchor, mask, ..., mask] gives every position's marginal at once; how
the tree is grown from them is an argument (`chain` is DFlash, `best_first` is DDTree).

Letters: b rows, n tokens, s block size, l = s - 1 drafted positions, h hidden, f width of the features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paceline.drafters.base import Drafter, DraftRequest
from paceline.kv_cache import LayerShape, SlotCache
from paceline.metrics import StageClock
from paceline.models.dflash import DFlashNetwork
from paceline.tree import DraftTree, Growth, Marginals
from paceline.tree.sampled_chain import sampled_chain
from paceline.tree.shared_noise import CANDIDATES, Coupling


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
        _move(self.couplings, source, destination)
        _move(self.unread, source, destination)

    def clear(self, row: int) -> None:
        self.cache.clear(row)
        self.couplings.pop(row, None)
        self.unread.pop(row, None)

    def save(self, row: int) -> list[Tensor]:
        self.catch_up(row, 1)
        return self.cache.save(row)

    def restore(self, row: int, saved: Sequence[Tensor], length: int) -> None:
        self.cache.restore(row, saved, length)


class DFlashDrafter(Drafter):
    """The network behind the loop's interface.

    `shared_noise` ranks a sampled request's candidates with the noise that the target will use. `samples` draws
    chains from the marginals instead, for the rules that need q; then `growth` is not asked.
    """

    name = "dflash"

    def __init__(
        self,
        network: DFlashNetwork,
        growth: Growth,
        tree_budget: int | None = None,
        shared_noise: bool = True,
        samples: bool = False,
    ):
        self.network = network.eval()
        self.shared_noise, self.samples = shared_noise, samples
        self.growth = growth
        config = network.config
        self.feature_layers = tuple(config.target_layer_ids)
        self.default_block_size = config.block_size
        self.default_tree_budget = tree_budget or _default_budget(config.block_size, network.norm.weight.device)

    @property
    def drafting(self) -> str:
        return f"{self.name} {self.growth.__name__}"

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

    @torch.inference_mode()
    def draft(self, state: DFlashState, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        cache = state.cache
        if any(_wants_network(request) for request in requests):
            state.catch_up(0, len(requests))
        trees: list[DraftTree] = [DraftTree.empty(cache.device) for _ in requests]
        for block_size, rows in _rows_by_block_size(requests).items():
            rows = [r for r in rows if cache.lengths[r] + block_size <= self.network.config.max_position_embeddings]
            if not rows:
                continue
            width = max(self._width(requests[r]) for r in rows)
            marginals = self._marginals(cache, rows, [requests[r].tokens[-1] for r in rows], block_size, width)
            clock.drafter_calls += 1
            clock.lap("draft")
            for row, marginal in zip(rows, marginals, strict=True):
                trees[row] = self._tree(state, row, requests[row], marginal)
            clock.lap("grow")
        return trees

    def _tree(self, state: DFlashState, row: int, request: DraftRequest, marginals: Marginals) -> DraftTree:
        if not self.samples:
            return self.growth(self._ranked(state, row, request, marginals), request.tree_budget)
        count = min(request.tree_budget, request.max_depth)
        vocabulary = self.network.config.vocab_size
        return sampled_chain(marginals, count, request.temperature, request.seed, len(request.tokens), vocabulary)

    def _width(self, request: DraftRequest) -> int:
        """Candidates of a position that can come into the tree."""
        if self.samples:
            return self.network.num_draft_tokens
        width = max(request.tree_budget, CANDIDATES) if self._knows_noise(request) else request.tree_budget
        return min(width, self.network.num_draft_tokens)

    def _knows_noise(self, request: DraftRequest) -> bool:
        return self.shared_noise and request.temperature > 0.0

    def _ranked(self, state: DFlashState, row: int, request: DraftRequest, marginals: Marginals) -> Marginals:
        """The marginals as deep as they are of use, and with the target's noise where the request is sampled."""
        depth = request.max_depth
        marginals = Marginals(marginals.tokens[:depth], marginals.log_probs[:depth])
        if not self._knows_noise(request):
            return marginals
        coupling = state.couplings.setdefault(row, Coupling())
        coupling.learn(request.tokens)
        return coupling.rank(marginals, request.temperature, request.seed, len(request.tokens))

    def _marginals(
        self, cache: SlotCache, rows: list[int], anchors: list[int], block_size: int, width: int
    ) -> list[Marginals]:
        """The `width` likeliest tokens of each drafted position, for each of `rows`."""
        hidden = self._block_hidden(cache, rows, anchors, block_size)
        logits = self.network.draft_logits(hidden[:, 1:]).float()
        top = logits.topk(width, -1)
        log_probs = top.values - logits.logsumexp(-1, keepdim=True)
        tokens = self.network.draft_to_target(top.indices)
        return [Marginals(t, p) for t, p in zip(tokens, log_probs, strict=True)]

    def _block_hidden(
        self, cache: SlotCache, rows: list[int], anchors: list[int], block_size: int
    ) -> Float[Tensor, "b s h"]:
        device = cache.device
        block = torch.full((len(rows), block_size), self.network.config.mask_token_id, device=device)
        block[:, 0] = torch.tensor(anchors, device=device)
        lengths = torch.tensor([cache.lengths[r] for r in rows], device=device)
        positions = lengths[:, None] + torch.arange(block_size, device=device)
        context = cache.committed(rows)
        span = context[0][0].shape[2]
        mask = None
        if len(rows) > 1:
            visible = torch.arange(span, device=device) < lengths[:, None]
            mask = visible[:, None, None].expand(-1, 1, block_size, -1)
        return self.network.block(self.network.embed(block), positions, context, mask)


def _default_budget(block_size: int, device: torch.device) -> int:
    """As many nodes as a block on a CPU, where every row of a pass costs; several times that elsewhere."""
    return block_size - 1 if device.type == "cpu" else 8 * (block_size - 1)


def _move(of_rows: dict[int, Any], source: int, destination: int) -> None:
    of_rows.pop(destination, None)
    if source in of_rows:
        of_rows[destination] = of_rows.pop(source)


def _wants_network(request: DraftRequest) -> bool:
    return request.wants_nodes and request.block_size > 1


def _rows_by_block_size(requests: Sequence[DraftRequest]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for row, request in enumerate(requests):
        if _wants_network(request):
            groups.setdefault(request.block_size, []).append(row)
    return groups
