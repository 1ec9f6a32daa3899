"""An exponential moving average of the weights: what is measured and exported, while training moves on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averages the learning parameters of a module: `average <- decay * average + (1 - decay) * weights`."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._live = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after `step` steps; early on the average is shorter than `decay` says."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.weights.values()), list(self._live.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module holds the average inside the `with`, and its own weights again after it."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, parameter in self._live.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.weights[name])
            self.weights[name].copy_(kept)
