"""The one place where fast twins are chosen for a device."""

from __future__ import annotations

from torch import nn

from paceline.kernels import openmp, packed_linear, panel_linear
from paceline.kernels.decoder_twins import make_twin
from paceline.kernels.packed_linear import PackedLinear
from paceline.kernels.panel_linear import PanelLinear


def prepare_for_device(model: nn.Module) -> int:
    """Replace a model's plain modules, in place, by their fast twins; how many were replaced.

    On a CPU every linear layer becomes a `PanelLinear` or a `PackedLinear`, whichever suits the processor and the
    layer's dtype, and the decoder modules that `decoder_twins` knows are fused; elsewhere, and where nothing fits,
    the plain modules stay.
    """
    replaced = 0
    for name, child in list(model.named_children()):
        twin = _twin(child)
        if twin is not None:
            setattr(model, name, twin)
        replaced += (twin is not None) + prepare_for_device(twin or child)
    return replaced


def _twin(module: nn.Module) -> nn.Module | None:
    if type(module) is nn.Linear:
        linear = make_linear(module)
        return None if linear is module else linear
    return make_twin(module, make_linear) if openmp.is_available() else None


def make_linear(linear: nn.Linear) -> nn.Module:
    """The fastest twin of a linear layer, or the layer itself."""
    if linear.weight.device.type != "cpu":
        return linear
    if panel_linear.is_supported(linear):
        return PanelLinear(linear)
    return PackedLinear(linear) if packed_linear.is_supported(linear.weight.dtype) else linear
