"""A chain drawn from the marginals, for the rules that compare p with the q that a token was drawn from."""

from __future__ import annotations

import torch

from paceline.noise import DRAFT, gumbel_argmax, stream_seed
from paceline.tree.draft_tree import DraftTree
from paceline.tree.marginals import Marginals


def sampled_chain(
    marginals: Marginals, budget: int, temperature: float, seed: int, position: int, vocab_size: int
) -> DraftTree:
    """The first `budget` positions, each drawn from its candidates at a temperature (0: the likeliest).

    `position` is that of the first token; the draws are independent of the noise that the target uses.
    """
    tokens, log_probs = marginals.tokens[:budget], marginals.log_probs[:budget]
    count = len(tokens)
    if temperature > 0.0:
        log_probs = (log_probs / temperature).log_softmax(-1)
        fresh = stream_seed(stream_seed(seed, DRAFT), position)  # in every round
        seeds = torch.full((count,), fresh, device=tokens.device)
        drawn = gumbel_argmax(log_probs, seeds, position + torch.arange(count, device=tokens.device))[:, None]
        weights = log_probs.exp()
    else:
        drawn = torch.zeros(count, 1, dtype=torch.int64, device=tokens.device)
        weights = torch.zeros_like(log_probs).scatter_(1, drawn, 1.0)
    q = torch.zeros(count, vocab_size, device=tokens.device).scatter_(1, tokens, weights)
    return DraftTree(
        tokens=tokens.gather(1, drawn)[:, 0],
        parents=torch.arange(count, device=tokens.device),
        log_probs=log_probs.gather(1, drawn)[:, 0].cumsum(0),
        q=q,
    )
