"""DFlash: a block-diffusion drafter (arXiv 2602.06036), its marginals grown into a tree (DDTree, arXiv 2604.12989).

One pass of the draft network over [anchor, mask, ..., mask] gives every position's marginal at once; how
the tree is grown from them is an argument (`chain` is DFlash, `best_first` is DDTree).

Letters: b rows, n tokens, s block size, l = s - 1 drafted positions, h hidden, f width of the features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest
from paceline.kv_cache import LayerShape, SlotCache
from paceline.metrics import StageClock
from paceline.models.dflash import DFlashNetwork
from paceline.tree import DraftTree, Growth, Marginals


class DFlashDrafter(Drafter):
    """The network behind the loop's interface; its state is a cache of the features' keys and values."""

    name = "dflash"

    def __init__(self, network: DFlashNetwork, growth: Growth, tree_budget: int | None = None):
        self.network = network.eval()
        self.growth = growth
        config = network.config
        self.feature_layers = tuple(config.target_layer_ids)
        self.default_block_size = config.block_size
        self.default_tree_budget = tree_budget or _default_budget(config.block_size, network.norm.weight.device)

    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> SlotCache:
        config = self.network.config
        shape = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim)
        return SlotCache([shape] * config.num_hidden_layers, num_rows, num_slots, self.network.dtype, device)

    @torch.inference_mode()
    def observe(
        self, state: SlotCache, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]
    ) -> None:
        num_rows, width = features.shape[:2]
        state.open(first_row, num_rows, width)
        starts = torch.tensor(state.starts, device=features.device)
        positions = starts[:, None] + torch.arange(width, device=features.device)
        context = self.network.context(features)
        for index, layer in enumerate(self.network.layers):
            keys, values = layer.self_attn.context_kv(context, positions)
            state.append(index, keys, values)
        state.extend(counts)

    @torch.inference_mode()
    def draft(self, state: SlotCache, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        trees: list[DraftTree] = [DraftTree.empty(state.device) for _ in requests]
        for block_size, rows in _rows_by_block_size(requests).items():
            rows = [r for r in rows if state.lengths[r] + block_size <= self.network.config.max_position_embeddings]
            if not rows:
                continue
            width = min(max(requests[r].tree_budget for r in rows), self.network.num_draft_tokens)
            marginals = self._marginals(state, rows, [requests[r].tokens[-1] for r in rows], block_size, width)
            clock.lap("draft")
            for row, marginal in zip(rows, marginals, strict=True):
                depth = requests[row].max_depth
                trees[row] = self.growth(
                    Marginals(marginal.tokens[:depth], marginal.log_probs[:depth]), requests[row].tree_budget
                )
            clock.lap("grow")
        return trees

    def _marginals(
        self, state: SlotCache, rows: list[int], anchors: list[int], block_size: int, width: int
    ) -> list[Marginals]:
        """The `width` likeliest tokens of each drafted position, for each of `rows`."""
        hidden = self._block_hidden(state, rows, anchors, block_size)
        logits = self.network.draft_logits(hidden[:, 1:]).float()
        top = logits.topk(width, -1)
        log_probs = top.values - logits.logsumexp(-1, keepdim=True)
        tokens = self.network.draft_to_target(top.indices)
        return [Marginals(t, p) for t, p in zip(tokens, log_probs, strict=True)]

    def _block_hidden(
        self, state: SlotCache, rows: list[int], anchors: list[int], block_size: int
    ) -> Float[Tensor, "b s h"]:
        device = state.device
        block = torch.full((len(rows), block_size), self.network.config.mask_token_id, device=device)
        block[:, 0] = torch.tensor(anchors, device=device)
        lengths = torch.tensor([state.lengths[r] for r in rows], device=device)
        positions = lengths[:, None] + torch.arange(block_size, device=device)
        context = state.committed(rows)
        span = context[0][0].shape[2]
        mask = None
        if len(rows) > 1:
            visible = torch.arange(span, device=device) < lengths[:, None]
            mask = visible[:, None, None].expand(-1, 1, block_size, -1)
        return self.network.block(self.network.embed(block), positions, context, mask)


def _default_budget(block_size: int, device: torch.device) -> int:
    """As many nodes as a block on a CPU, where every row of a pass costs; several times that elsewhere."""
    return block_size - 1 if device.type == "cpu" else 8 * (block_size - 1)


def _rows_by_block_size(requests: Sequence[DraftRequest]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for row, request in enumerate(requests):
        if request.wants_nodes:
            groups.setdefault(request.block_size, []).append(row)
    return groups
