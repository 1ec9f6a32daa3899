"""Predictors that read what the prefill left: which block size suits a prompt best (BlockPilot, arXiv 2606.31315), or
how many drafted tokens a round will keep with each.

Letters: b prompts, v vocabulary, f width of the features, h hidden size, n inputs, k classes (block sizes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import InputError
from paceline.types import MAX_NODES, PolicyInputs, PolicyOutputs


@dataclass(frozen=True)
class PolicyHeadConfig:
    """The network. The defaults are the paper's: two hidden layers of 2,048 on the whole vector of raw logits.

    Its outputs are scores of the block sizes (`best_size`), or for each size the logarithm of the drafted tokens that
    a round keeps (`accepted`).

    Raises:
        InputError: a value outside its range.
    """

    num_inputs: int
    block_sizes: tuple[int, ...]
    inputs: PolicyInputs = "logits"
    width: int = 2048
    num_layers: int = 2
    dropout: float = 0.2
    predicts: PolicyOutputs = "best_size"

    def __post_init__(self) -> None:
        for name, known in (("inputs", get_args(PolicyInputs)), ("predicts", get_args(PolicyOutputs))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(known)}.")
        for name, most in (("num_inputs", 2**22), ("width", 2**16), ("num_layers", 64)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InputError(f"{name} is {value!r}, but must be a whole number within 1 to {most}.")
        if type(self.dropout) not in (int, float) or not 0.0 <= self.dropout < 1.0:
            raise InputError(f"dropout is {self.dropout!r}, but must be within 0 to 1, 1 excluded.")
        sizes = list(self.block_sizes)
        usable = all(type(size) is int and 2 <= size <= MAX_NODES for size in sizes)
        if not usable or len(sizes) < 2 or sizes != sorted(set(sizes)):
            raise InputError(f"block_sizes are {sizes}, but must be two or more within 2 to {MAX_NODES}, ascending.")


class PolicyHead(nn.Module):
    """An MLP with ReLU and dropout, and a residual connection from the second hidden layer on."""

    def __init__(self, config: PolicyHeadConfig):
        super().__init__()
        self.config = config
        self.first = nn.Linear(config.num_inputs, config.width)
        self.hidden = nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(config.num_layers - 1))
        self.last = nn.Linear(config.width, len(config.block_sizes))

    def forward(self, inputs: Float[Tensor, "b n"]) -> Float[Tensor, "b k"]:
        """An output for each block size."""
        h = self._drop(F.relu(self.first(inputs)))
        for layer in self.hidden:
            h = h + self._drop(F.relu(layer(h)))
        scores: Tensor = self.last(h)
        return scores

    def prepare(
        self,
        logits: Float[Tensor, "b v"],
        features: Float[Tensor, "b f"] | None = None,
        hidden: Float[Tensor, "b h"] | None = None,
    ) -> Float[Tensor, "b n"]:
        """What the network reads of prompts; the one place that training and serving both use.

        Raises:
            InputError: inputs of another width, or none of the kind that is read.
        """
        kind = self.config.inputs
        if kind == "top_k":
            inputs = logits.float().topk(min(self.config.num_inputs, logits.shape[-1]), -1).values
        elif kind == "softmax":
            inputs = logits.float().softmax(-1)
        else:
            found = {"logits": logits, "features": features, "last_hidden": hidden}[kind]
            if found is None:
                raise InputError(f"this policy reads {kind}, but there are none with this drafter; train another.")
            inputs = found.float()
        if inputs.shape[-1] != self.config.num_inputs:
            raise InputError(
                f"this policy reads {self.config.num_inputs} {kind}, but {inputs.shape[-1]} came; "
                "use one that was trained for this target and drafter."
            )
        return inputs

    @torch.inference_mode()
    def predict(
        self,
        logits: Float[Tensor, " v"],
        features: Float[Tensor, " f"] | None = None,
        hidden: Float[Tensor, " h"] | None = None,
    ) -> list[float]:
        """The outputs for one prompt."""
        weight = self.first.weight
        rows = (None if x is None else x[None] for x in (features, hidden))
        inputs = self.prepare(logits[None], *rows)
        found: list[float] = self(inputs.to(weight.device, weight.dtype))[0].tolist()
        return found

    def choose(
        self,
        logits: Float[Tensor, " v"],
        features: Float[Tensor, " f"] | None = None,
        hidden: Float[Tensor, " h"] | None = None,
    ) -> int:
        """The block size for one prompt: the one of the largest output."""
        found = self.predict(logits, features, hidden)
        return self.config.block_sizes[found.index(max(found))]

    def _drop(self, h: Float[Tensor, "b w"]) -> Float[Tensor, "b w"]:
        return F.dropout(h, self.config.dropout, self.training)
