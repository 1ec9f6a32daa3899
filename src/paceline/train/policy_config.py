"""Everything that training a block-size policy is told; flags are generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.errors import InputError
from paceline.types import PolicyInputs, PolicyOutputs


@dataclass(frozen=True)
class PolicyTrainConfig:
    """Train a predictor of the block size on labels. What is not given is the recipe of the BlockPilot paper."""

    labels: tuple[Path, ...]
    """Folders of `paceline label`, all of one target, drafter and set of block sizes."""
    out: Path
    """Folder for the policy; one that lies there is replaced."""
    predict: PolicyOutputs = "best_size"
    """Predict which block size is best, for policy `blockpilot`, or how many drafted tokens a round keeps with each,
    for policy `joint`."""
    label_by: Literal["acceptance_length", "tokens_per_s"] = "acceptance_length"
    """The best block size is the one of the longest acceptance length, or of the most tokens/s at the median time
    that a round of each size took."""
    inputs: PolicyInputs = "logits"
    """What is read of a prompt: raw logits after its last token, their softmax, the largest ones, the drafter's
    features of that token, or the output of the target's last layer there."""
    top_k: int = 64
    """How many logits top_k reads."""
    width: int = 2048
    """Units of a hidden layer."""
    num_layers: int = 2
    """Hidden layers."""
    dropout: float = 0.2
    """Share of hidden units dropped in training."""
    learning_rate: float = 1e-5
    """Of Adam."""
    epochs: int = 100
    """At most this many passes over the training prompts."""
    batch: int = 32
    """Prompts of a step."""
    validation: float = 0.15
    """Share of the prompts, by a hash of the prompt, on which the best epoch is chosen."""
    patience: int = 20
    """Stop after this many epochs without a lower validation loss."""
    seed: int = 0
    """Seed of the weights, the order and the dropout."""
    device: str | None = None
    """Where to compute; the best one present where not given."""
    threads: int | None = None
    """CPU threads; PyTorch's choice where not given."""

    def __post_init__(self) -> None:
        if not self.labels:
            raise InputError("labels names no folder; make labels with `paceline label`.")
        for name in ("top_k", "width", "num_layers", "epochs", "batch", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.predict == "accepted" and self.label_by != "acceptance_length":
            raise InputError(f"label_by is {self.label_by!r}, but only a best size is labelled by it; leave it out.")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}, but must be a 64-bit integer.")
        if not 0.0 < self.learning_rate < 1.0:
            raise InputError(f"learning_rate is {self.learning_rate}, but must be above 0 and below 1.")
        if not 0.0 < self.validation < 1.0:
            raise InputError(f"validation is {self.validation}, but must be a share above 0 and below 1.")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"dropout is {self.dropout}, but must be within 0 to 1, 1 excluded.")
