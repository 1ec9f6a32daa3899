"""Marginals that know the noise of the target: coupling without communication (Daliri et al., arXiv 2408.07978).

At a temperature above 0 the target's token at position t is argmax_v(log p(v) + g_t(v)), and the noise g is a function
of the request's seed and t. So a drafter ranks its candidates by (w log q(v) + g_t(v)) / sigma: the weight w says how
far to trust the drafter against the noise, the spread sigma how sure of the outcome to be. At w = sigma = 1 these would
be the scores of an exact p. The text stays the target's own, whatever the drafter proposes.

Letters: l positions, k candidates of a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from paceline.noise import gumbel_at
from paceline.tree.marginals import Marginals

CANDIDATES = 256
"""Tokens of a position that are given noise: those below it are too unlikely to win often."""
_WEIGHTS = (0.8, 1.0, 1.25, 1.6)
_SPREADS = (0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2)
_GRID = tuple((weight, spread) for weight in _WEIGHTS for spread in _SPREADS)
_FIRST = _GRID.index((1.25, 2.0))  # until the request's own rounds speak
_HEAD_START = 2.0
_MEMORY = 0.99


@dataclass
class _Ranked:
    """What was ranked last, to learn from once the tokens are there."""

    position: int
    tokens: Int64[Tensor, "l k"]
    log_probs: Float32[Tensor, "l k"]  # at the request's temperature
    noise: Float32[Tensor, "l k"]


class Coupling:
    """The weight and spread under which the tokens that came were likeliest, among a grid of them; of one request."""

    def __init__(self) -> None:
        self._weights, self._spreads = torch.tensor(_GRID).T[:, :, None, None]
        self._log_likelihoods = torch.zeros(len(_GRID))
        self._log_likelihoods[_FIRST] = _HEAD_START
        self._ranked: _Ranked | None = None

    @property
    def weight_and_spread(self) -> tuple[float, float]:
        return _GRID[int(self._log_likelihoods.argmax())]

    def rank(self, marginals: Marginals, temperature: float, seed: int, position: int, keeps: bool = True) -> Marginals:
        """The marginals of the tokens at `position` and on, once the noise is known; best first again.

        `marginals` are those of temperature 1; `keeps` says that they are what to learn from next.
        """
        count = marginals.tokens.shape[0]
        positions = torch.arange(position, position + count, device=marginals.tokens.device)
        noise = gumbel_at(torch.full_like(positions, seed), positions, marginals.tokens).to(marginals.log_probs)
        ranked = _Ranked(position, marginals.tokens, marginals.log_probs / temperature, noise)
        self._ranked = ranked if keeps else self._ranked
        weight, spread = self.weight_and_spread
        scores = ((weight * ranked.log_probs + noise) / spread).log_softmax(-1)
        scores, order = scores.sort(-1, descending=True)
        return Marginals(marginals.tokens.gather(-1, order), scores)

    def learn(self, tokens: Sequence[int]) -> None:
        """Let the sequence so far say how likely what came was, under each pair of the grid."""
        ranked, self._ranked = self._ranked, None
        if ranked is None:
            return
        came = torch.tensor(tokens[ranked.position : ranked.position + len(ranked.tokens)])
        held = ranked.tokens[: len(came)].cpu() == came[:, None]
        known = held.any(-1)
        if not bool(known.any()):
            return
        log_probs, noise = (values[: len(came)].cpu()[known] for values in (ranked.log_probs, ranked.noise))
        scores = (self._weights * log_probs + noise) / self._spreads
        chosen = held[known].int().argmax(-1)[None, :, None].expand(len(_GRID), -1, 1)
        self._log_likelihoods = self._log_likelihoods * _MEMORY + scores.log_softmax(-1).gather(-1, chosen).sum((1, 2))
