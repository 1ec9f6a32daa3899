"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): momentum, made orthogonal.

PyTorch's own Muon iterates in bfloat16, which a CPU without bfloat16 products runs fifty times slower than
float32; this one iterates in the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, of matrices only.

    The update is scaled to a root mean square of 0.2 (Moonlight, 2502.16982), which is what AdamW's usually has,
    so that both take the same learning rate. Weight decay is decoupled.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        assert closure is None, "Muon evaluates no closure"
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, matrix.grad, group)

    def _update(self, matrix: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        average = state["momentum"].lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalise(torch.lerp(gradient, average, group["momentum"]))
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.add_(direction, alpha=-0.2 * max(matrix.shape) ** 0.5 * group["lr"])


def orthogonalise(matrix: Tensor) -> Tensor:
    """Float[r, c]: roughly U V^T of the matrix's singular value decomposition (singular values near 1).

    Every iteration multiplies by a polynomial of the Gram matrix `X X^T`. Of a wide matrix only that small
    square is iterated, and the wide factor is multiplied once, at the end.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-7)
    x = _by_gram(x) if x.shape[1] >= 2 * x.shape[0] else _directly(x)
    return x if wide is matrix else x.T


def _directly(x: Tensor) -> Tensor:
    for _ in range(_NUM_ITERATIONS):
        x = _factor(x @ x.T) @ x
    return x


def _by_gram(x: Tensor) -> Tensor:
    """The same: with P the factor of an iteration, X <- P X makes the Gram matrix P G P; all of them commute."""
    gram = x @ x.T
    product = factor = _factor(gram)
    for _ in range(_NUM_ITERATIONS - 1):
        gram = factor @ factor @ gram
        factor = _factor(gram)
        product = factor @ product
    return product @ x


def _factor(gram: Tensor) -> Tensor:
    """`a I + b G + c G^2`."""
    a, b, c = _QUINTIC
    factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal().add_(a)
    return factor
