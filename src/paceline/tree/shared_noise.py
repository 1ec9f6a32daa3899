"""Marginals that know the noise of the target: coupling without communication (Daliri et al., arXiv 2408.07978).

At a temperature above 0 the target's token at position t is argmax_v(log p(v) + g_t(v)), and the noise g is a function
of the request's seed and t. So a drafter ranks its candidates by log q(v) + g_t(v), divided by a sharpness sigma that
says how far q is from p: at sigma = 1 the candidates' scores would be those of an exact p. The text stays the target's
own, whatever the drafter proposes.

Letters: l positions, k candidates of a position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.noise import gumbel_at
from paceline.tree.marginals import Marginals

CANDIDATES = 64
"""Tokens of a position that are given noise: those below it are too unlikely to win often."""
_SHARPNESSES = (0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2)
_FIRST = 3  # of the sharpnesses, until the request's own rounds speak
_HEAD_START = 2.0
_MEMORY = 0.99


class Sharpness:
    """The sharpness under which the tokens that came were likeliest, among a few; of one request."""

    def __init__(self) -> None:
        self._grid = torch.tensor(_SHARPNESSES)[:, None, None]
        self._log_likelihoods = torch.zeros(len(_SHARPNESSES))
        self._log_likelihoods[_FIRST] = _HEAD_START
        self._ranked: tuple[int, Tensor, Tensor] | None = None

    @property
    def value(self) -> float:
        return _SHARPNESSES[int(self._log_likelihoods.argmax())]

    def rank(self, marginals: Marginals, temperature: float, seed: int, position: int) -> Marginals:
        """The marginals of the tokens at `position` and on, once the noise is known; best first again.

        `marginals` are those of temperature 1.
        """
        count = marginals.tokens.shape[0]
        positions = torch.arange(position, position + count, device=marginals.tokens.device)
        noise = gumbel_at(torch.full_like(positions, seed), positions, marginals.tokens)
        totals = marginals.log_probs / temperature + noise.to(marginals.log_probs)
        self._ranked = (position, marginals.tokens, totals)
        scores, order = (totals / self.value).log_softmax(-1).sort(-1, descending=True)
        return Marginals(marginals.tokens.gather(-1, order), scores)

    def learn(self, tokens: Sequence[int]) -> None:
        """Let the sequence so far say how likely what came was, under each sharpness."""
        if self._ranked is None:
            return
        position, candidates, totals = self._ranked
        self._ranked = None
        came = torch.tensor(tokens[position : position + len(candidates)], device=candidates.device)
        held = candidates[: len(came)] == came[:, None]
        known = held.any(-1)
        if bool(known.any()):
            log_probs = self._log_probs(totals[: len(came)][known])
            chosen = log_probs.gather(-1, held[known].int().argmax(-1)[None, :, None].expand(len(_SHARPNESSES), -1, 1))
            self._log_likelihoods = self._log_likelihoods * _MEMORY + chosen.sum((1, 2)).cpu()

    def _log_probs(self, totals: Float[Tensor, "l k"]) -> Float[Tensor, "s l k"]:
        return (totals / self._grid.to(totals.device)).log_softmax(-1)
