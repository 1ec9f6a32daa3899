"""Labels as examples of a classifier over block sizes (BlockPilot, arXiv 2606.31315).

Letters: n prompts, k block sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from paceline.errors import InputError
from paceline.labels import Label
from paceline.models.policy_head import PolicyHead


@dataclass(frozen=True)
class Examples:
    """Inputs, the best class of each prompt, and how good every class would have been."""

    inputs: Float[Tensor, "n i"]
    best: Int64[Tensor, " n"]
    values: Float[Tensor, "n k"]

    def __len__(self) -> int:
        return len(self.best)


def examples(head: PolicyHead, labels: Sequence[Label], values: Float[Tensor, "n k"]) -> Examples:
    """Examples of these labels; of equally good sizes the smallest is the best."""
    logits = torch.stack([label.logits for label in labels])
    features = torch.stack([label.features for label in labels])
    inputs = head.prepare(logits, features if features.shape[1] else None)
    return Examples(inputs, values.argmax(-1), values)


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
