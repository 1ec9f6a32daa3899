"""The target's token after every node of a pass, by the settings of the sequence and the node's own prefix.

Letters: b sequences, m nodes of a pass, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from paceline.acceptance import Accepted
from paceline.noise import ACCEPT, REST, gumbel_argmax, stream_seed, uniform_at
from paceline.penalties import TokenCounts, edit_tree
from paceline.sampled_acceptance import SampledRule
from paceline.sampling import log_probs, target_tokens, transformed_log_probs
from paceline.sequence import ActiveSequence
from paceline.tree import DraftTree, TreeBatch
from paceline.types import GenerationSettings, TokenLogprob


def edit_logits(
    sequences: Sequence[ActiveSequence], trees: TreeBatch, logits: Float[Tensor, "b m v"]
) -> Float[Tensor, "b m v"]:
    """The logits as each sequence's settings change them; the very same tensor where none does."""
    edited = [row for row, s in enumerate(sequences) if s.settings.edits_logits]
    if not edited:
        return logits
    logits = logits.to(torch.float32, copy=True)
    for row in edited:
        sequence = sequences[row]
        if sequence.counts is None:
            sequence.counts = TokenCounts(sequence.tokens, logits.shape[-1], logits.device)
        tokens, visible = trees.tokens[row], trees.visible[row]
        logits[row] = edit_tree(logits[row], tokens, visible, sequence.counts, sequence.settings, sequence.ends)
        if sequence.constraint is not None:
            sequence.constraint.mask(logits[row])
    return logits


def choose_tokens(
    sequences: Sequence[ActiveSequence], trees: TreeBatch, logits: Float[Tensor, "b m v"]
) -> Int64[Tensor, "b m"]:
    """The target's token after every node, each with the noise of the position that the token will take."""
    num_rows, width = trees.tokens.shape
    starts = torch.tensor([len(s.tokens) for s in sequences], device=logits.device)
    positions = (starts[:, None] + trees.depths).flatten()
    settings = [s.settings for s in sequences for _ in range(width)]
    return target_tokens(logits.flatten(0, 1), positions, settings).view(num_rows, width)


def accept_sampled(
    rule: SampledRule, sequences: Sequence[ActiveSequence], trees: Sequence[DraftTree], logits: Float[Tensor, "b m v"]
) -> Accepted:
    """The outcome of a round in which each tree is a chain that its drafter sampled, or empty."""
    paths, tokens = [], []
    for row, (sequence, tree) in enumerate(zip(sequences, trees, strict=True)):
        count, seed = tree.num_nodes, sequence.settings.seed
        p = _probabilities(logits[row, : count + 1], sequence.settings)
        kept, weights = 0, p[0]
        if count:
            assert tree.q is not None, "the rule needs a chain that was sampled"
            positions = torch.arange(count, device=p.device) + len(sequence.tokens)
            # fresh in every round: what the block rule drops says something about the numbers that it used
            uniforms = uniform_at(stream_seed(stream_seed(seed, ACCEPT), len(sequence.tokens)), positions)
            kept, weights = rule(p, tree.q.to(p), tree.tokens.to(p.device), uniforms.to(p.device))
        position = torch.tensor([len(sequence.tokens) + kept], device=p.device)
        rest = torch.tensor([stream_seed(seed, REST)], device=p.device)
        paths.append(list(range(1, kept + 1)))
        tokens.append([*tree.tokens[:kept].tolist(), int(gumbel_argmax(weights.log()[None], rest, position))])
    return Accepted(paths, tokens)


def _probabilities(logits: Float[Tensor, "m v"], settings: GenerationSettings) -> Float[Tensor, "m v"]:
    """p after every node; at temperature 0 all of it on the likeliest token."""
    if settings.temperature == 0.0:
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    return transformed_log_probs(logits.float(), [settings] * len(logits)).exp()


def keep_logprobs(sequences: Sequence[ActiveSequence], logits: Float[Tensor, "b m v"], accepted: Accepted) -> None:
    """Note the log-probability of every token that the round emits, for the sequences that ask for them."""
    for row, sequence in enumerate(sequences):
        count = sequence.settings.logprobs
        if count is None:
            continue
        nodes = [0, *accepted.paths[row]]
        scores = log_probs(logits[row, nodes], [sequence.settings] * len(nodes))
        tokens = torch.tensor(accepted.tokens[row], device=scores.device)
        chosen = scores.gather(1, tokens[:, None])[:, 0].tolist()
        top = scores.topk(min(count, scores.shape[1]), -1)
        for token, score, ids, values in zip(
            accepted.tokens[row], chosen, top.indices.tolist(), top.values.tolist(), strict=True
        ):
            sequence.logprobs.append(TokenLogprob(token, score, tuple(zip(ids, values, strict=True))))
