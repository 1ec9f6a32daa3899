"""Drafters whose networks say all positions at once: the marginals of DFlash and of parallel heads, and what grows from
them.

How a tree is grown from the marginals is an argument (`chain`: their likeliest tokens; `best_first`: DDTree, arXiv
2604.12989).

Letters: b rows, s block size, l = s - 1 drafted positions, h hidden.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest
from paceline.metrics import StageClock
from paceline.models.draft_network import DraftNetwork
from paceline.tree import DraftTree, Growth, Marginals
from paceline.tree.sampled_chain import sampled_chain
from paceline.tree.shared_noise import CANDIDATES, Coupling


class ParallelState(Protocol):
    """What such a drafter remembers: how each sampled row's marginals meet the noise, beside what is its own."""

    couplings: dict[int, Coupling]

    @property
    def device(self) -> torch.device: ...


class ParallelDrafter(Drafter):
    """The network behind the loop's interface.

    `shared_noise` ranks a sampled request's candidates with the noise that the target will use. `samples` draws
    chains from the marginals instead, for the rules that need q; then `growth` is not asked.
    """

    network: DraftNetwork

    def __init__(self, growth: Growth, shared_noise: bool = True, samples: bool = False):
        self.growth, self.shared_noise, self.samples = growth, shared_noise, samples

    @property
    def drafting(self) -> str:
        return f"{self.name} {self.growth.__name__}"

    @abstractmethod
    def _catch_up(self, state: Any, num_rows: int) -> None:
        """Read what waits of these rows, of which some want a draft."""

    @abstractmethod
    def _reaches(self, state: Any, row: int, block_size: int) -> bool:
        """Whether a block of this size can be drafted after a row's text."""

    @abstractmethod
    def _hidden(self, state: Any, rows: list[int], anchors: list[int], block_size: int) -> Float[Tensor, "b l h"]:
        """Normed hidden states of the drafted positions of each of `rows`."""

    @torch.inference_mode()
    def draft(self, state: Any, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        by_size = _rows_by_block_size(requests)
        if by_size:
            self._catch_up(state, len(requests))
        trees = [DraftTree.empty(state.device) for _ in requests]
        for block_size, asking in by_size.items():
            rows = [row for row in asking if self._reaches(state, row, block_size)]
            if not rows:
                continue
            width = max(self._width(requests[row]) for row in rows)
            hidden = self._hidden(state, rows, [requests[row].tokens[-1] for row in rows], block_size)
            marginals = self._marginals(hidden, width)
            clock.drafter_calls += 1
            clock.lap("draft")
            for row, marginal in zip(rows, marginals, strict=True):
                trees[row] = self._tree(state, row, requests[row], marginal)
            clock.lap("grow")
        return trees

    def _marginals(self, hidden: Float[Tensor, "b l h"], width: int) -> list[Marginals]:
        """The `width` likeliest tokens of each drafted position."""
        logits = self.network.draft_logits(hidden).float()
        top = logits.topk(width, -1)
        log_probs = top.values - logits.logsumexp(-1, keepdim=True)
        tokens = self.network.draft_to_target(top.indices)
        return [Marginals(t, p) for t, p in zip(tokens, log_probs, strict=True)]

    def _tree(self, state: ParallelState, row: int, request: DraftRequest, marginals: Marginals) -> DraftTree:
        if not self.samples:
            return self.growth(self._ranked(state, row, request, marginals), request.tree_budget)
        count = min(request.tree_budget, request.max_depth)
        vocabulary = self.network.vocab_size
        return sampled_chain(marginals, count, request.temperature, request.seed, len(request.tokens), vocabulary)

    def _width(self, request: DraftRequest) -> int:
        """Candidates of a position that can come into the tree."""
        if self.samples:
            return self.network.num_draft_tokens
        width = max(request.tree_budget, CANDIDATES) if self._knows_noise(request) else request.tree_budget
        return min(width, self.network.num_draft_tokens)

    def _knows_noise(self, request: DraftRequest) -> bool:
        return self.shared_noise and request.temperature > 0.0

    def _ranked(
        self, state: ParallelState, row: int, request: DraftRequest, marginals: Marginals, first: int = 0
    ) -> Marginals:
        """The marginals, as deep as they are of use, and with the target's noise where the request is sampled; theirs
        are the depths after the first `first` ones."""
        depth = request.max_depth - first
        marginals = Marginals(marginals.tokens[:depth], marginals.log_probs[:depth])
        if not self._knows_noise(request):
            return marginals
        coupling = state.couplings.setdefault(row, Coupling())
        if not first:
            coupling.learn(request.tokens)
        position = len(request.tokens) + first
        return coupling.rank(marginals, request.temperature, request.seed, position, keeps=not first)


def default_budget(block_size: int, device: torch.device) -> int:
    """As many nodes as a block on a CPU, where every row of a pass costs; several times that elsewhere."""
    return block_size - 1 if device.type == "cpu" else 8 * (block_size - 1)


def move_rows(of_rows: dict[int, Any], source: int, destination: int) -> None:
    """What is kept by row, as the rows of the batch move."""
    of_rows.pop(destination, None)
    if source in of_rows:
        of_rows[destination] = of_rows.pop(source)


def _rows_by_block_size(requests: Sequence[DraftRequest]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for row, request in enumerate(requests):
        if request.wants_nodes and request.block_size > 1:
            groups.setdefault(request.block_size, []).append(row)
    return groups
