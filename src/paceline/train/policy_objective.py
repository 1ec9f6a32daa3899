"""Labels as examples: of a classifier over block sizes (BlockPilot, arXiv 2606.31315), or of what each size brings.

Letters: n prompts, k block sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from paceline.errors import InputError
from paceline.labels import Label
from paceline.models.policy_head import PolicyHead


@dataclass(frozen=True)
class Examples:
    """Inputs, the best class of each prompt, how good every class would have been, and the logarithm of the drafted
    tokens that a round kept with it."""

    inputs: Float[Tensor, "n i"]
    best: Int64[Tensor, " n"]
    values: Float[Tensor, "n k"]
    accepted: Float[Tensor, "n k"]

    def __len__(self) -> int:
        return len(self.best)


def examples(head: PolicyHead, labels: Sequence[Label], values: Float[Tensor, "n k"]) -> Examples:
    """Examples of these labels; of equally good sizes the smallest is the best."""
    logits = torch.stack([label.logits for label in labels])
    features = torch.stack([label.features for label in labels])
    hidden = torch.stack([label.hidden for label in labels])
    inputs = head.prepare(logits, features if features.shape[1] else None, hidden)
    return Examples(inputs, values.argmax(-1), values, log_accepted(labels))


def loss(head: PolicyHead, outputs: Float[Tensor, "b k"], of: Examples, rows: Int64[Tensor, " b"]) -> Float[Tensor, ""]:
    """Cross-entropy of the best size, or the squared error of the logarithm."""
    if head.config.predicts == "best_size":
        return F.cross_entropy(outputs, of.best[rows].to(outputs.device))
    return F.mse_loss(outputs, of.accepted[rows].to(outputs.device))


def log_accepted(labels: Sequence[Label]) -> Float[Tensor, "n k"]:
    """log of the drafted tokens that a round kept, each count smoothed by one half.

    tau is 1 + accepted / rounds, so that this is also the log-odds of a drafted token being kept rather than refused.
    """
    accepted = torch.stack([label.accepted for label in labels]).float()
    rounds = torch.stack([label.rounds for label in labels]).float()
    return ((accepted + 0.5) / (rounds + 0.5)).log()


def counting_noise(labels: Sequence[Label]) -> Float[Tensor, " k"]:
    """The variance of `log_accepted` that comes from counting few rounds, averaged over prompts (delta method)."""
    accepted = torch.stack([label.accepted for label in labels]).float()
    rounds = torch.stack([label.rounds for label in labels]).float()
    return (1.0 / (accepted + 0.5) + 1.0 / (rounds + 0.5)).mean(0)


def acceptance_lengths(labels: Sequence[Label]) -> Float[Tensor, "n k"]:
    """tau of every prompt at every size."""
    return torch.stack([label.acceptance_length for label in labels])


def rates_at_median_cost(labels: Sequence[Label]) -> Float[Tensor, "n k"]:
    """Tokens/s of every prompt at every size, at the median time that a round of this size takes over all prompts.

    METHODS section 4: L(b) = (T_draft(b) + T_verify(b)) / tau(b; x). A prompt's own times would carry the noise of the
    machine into its label. Answers without rounds say nothing of the time.

    Raises:
        InputError: no answer has a round.
    """
    decoded = [label for label in labels if bool((label.rounds > 0).all())]
    if not decoded:
        raise InputError("every answer ended with its first token, so that no size took any time; label other prompts.")
    seconds = torch.stack([label.decode_s / label.rounds for label in decoded])
    return acceptance_lengths(labels) / seconds.median(0).values
