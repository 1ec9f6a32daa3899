"""A linear layer for the CPU whose weight is laid out once for oneDNN.

Speculative verification multiplies a few rows by large weights. There `torch.nn.functional.linear` is two
to five times slower than the product that `torch.compile`'s freezing uses: the weight is reordered on
every call. This module reorders it once.

Letters: o outputs, i inputs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


def is_supported(dtype: torch.dtype) -> bool:
    """Whether this machine's oneDNN packs weights of this dtype (bfloat16 needs AVX-512 or better)."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedLinear(nn.Module):
    """Inference-only twin of `nn.Linear` with a prepacked weight."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Float[Tensor, "... i"]) -> Float[Tensor, "... o"]:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
