"""A linear layer for the CPU whose weight lies in panels, for processors on which oneDNN is slow at a few rows.

Letters: o outputs, i inputs, n rows, p = o / LANES panels.
"""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paceline.kernels.panel_product import LANES, panel_product


def is_supported(linear: nn.Linear) -> bool:
    """Whether this machine runs the layer's product, and faster than oneDNN does.

    That is x86 with AVX2 and no more: with AVX-512 oneDNN has products for a few rows of its own, and below AVX2
    there are no fused multiply-adds.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX2" or linear.weight.dtype not in (torch.float32, torch.bfloat16):
        return False
    if linear.out_features % LANES:
        return False
    try:
        panel_product(linear.weight.dtype == torch.bfloat16)
    except OSError:  # no OpenMP runtime to share with PyTorch
        return False
    return True


class PanelLinear(nn.Module):
    """Inference-only twin of `nn.Linear`: sums in float32, each row the same whatever rows go with it."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = linear.weight.dtype
        weight = linear.weight.detach().view(-1, LANES, linear.in_features)
        self._panels: Float[Tensor, "p i lanes"] = weight.transpose(1, 2).contiguous()
        bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()
        self._bias = bias.contiguous()
        self._product = panel_product(self.dtype == torch.bfloat16)

    def forward(self, x: Float[Tensor, "... i"]) -> Float[Tensor, "... o"]:
        assert x.dtype == self.dtype and x.shape[-1] == self.in_features, f"{x.dtype} {tuple(x.shape)} does not fit"
        rows = x.reshape(-1, self.in_features).float().contiguous()
        out = torch.empty(len(rows), self.out_features)
        if len(rows):
            self._multiply(rows, out)
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _multiply(self, rows: Float[Tensor, "n i"], out: Float[Tensor, "n o"]) -> None:
        arguments = (ctypes.c_int64 * 10)(
            0,
            rows.data_ptr(),
            len(rows),
            self.in_features,
            self._panels.data_ptr(),
            self.out_features // LANES,
            self._bias.data_ptr(),
            out.data_ptr(),
            self.out_features,
            0,  # the panels that were taken
        )
        start = ctypes.addressof(arguments)
        arguments[0] = start + 9 * ctypes.sizeof(ctypes.c_int64)
        self._product(start)
