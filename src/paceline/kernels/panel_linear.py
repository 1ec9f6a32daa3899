"""A linear layer for the CPU whose weight lies in panels, for processors on which oneDNN is slow at a few rows.

Letters: o outputs, i inputs, n rows, p = o / LANES panels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paceline.kernels import openmp
from paceline.kernels.machine_code import LANES
from paceline.kernels.openmp import run
from paceline.kernels.panel_product import panel_product


def is_supported(linear: nn.Linear) -> bool:
    """Whether this machine runs the layer's product, and faster than oneDNN does.

    That is x86 with AVX2 and no more: with AVX-512 oneDNN has products for a few rows of its own.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX2" or linear.weight.dtype not in (torch.float32, torch.bfloat16):
        return False
    return linear.out_features % LANES == 0 and openmp.is_available()


class PanelLinear(nn.Module):
    """Inference-only twin of `nn.Linear`: sums in float32, each row the same whatever rows go with it.

    Weights that bfloat16 holds without loss, as those of most checkpoints, are kept and read as such in a float32
    layer too: half the bytes, the same result, bit for bit.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = linear.weight.dtype
        self._num_panels = linear.out_features // LANES
        weight = _narrowest(linear.weight.detach()).view(-1, LANES, linear.in_features)
        self._panels: Float[Tensor, "p i lanes"] = weight.transpose(1, 2).contiguous()
        bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()
        self._bias = bias.contiguous()
        self._product = panel_product(weight.dtype == torch.bfloat16)

    def forward(self, x: Float[Tensor, "... i"]) -> Float[Tensor, "... o"]:
        assert x.dtype == self.dtype and x.shape[-1] == self.in_features, f"{x.dtype} {tuple(x.shape)} does not fit"
        rows = x.float().contiguous()
        out = torch.empty(*x.shape[:-1], self.out_features)
        num_rows = x.numel() // self.in_features
        if num_rows:
            self._multiply(rows, num_rows, out)
        return out.to(self.dtype)

    def _multiply(self, rows: Float[Tensor, "*n i"], num_rows: int, out: Float[Tensor, "*n o"]) -> None:
        run(
            self._product,
            self._num_panels,
            rows.data_ptr(),
            num_rows,
            self.in_features,
            self._panels.data_ptr(),
            self._num_panels,
            self._bias.data_ptr(),
            out.data_ptr(),
            self.out_features,
            torch.get_num_threads(),
        )


def _narrowest(weight: Tensor) -> Tensor:
    """The weight as bfloat16 where that loses nothing."""
    half = weight.bfloat16()
    return half if torch.equal(half.to(weight.dtype), weight) else weight
