"""The one place where fast twins are chosen for a device."""

from __future__ import annotations

from torch import nn

from paceline.kernels import packed_linear, panel_linear
from paceline.kernels.packed_linear import PackedLinear
from paceline.kernels.panel_linear import PanelLinear


def prepare_for_device(model: nn.Module) -> int:
    """Replace a model's plain modules, in place, by their fast twins; how many were replaced.

    On a CPU every linear layer becomes a `PanelLinear` or a `PackedLinear`, whichever suits the processor and the
    layer's dtype; elsewhere, and where neither does, the plain modules stay.
    """
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and (twin := _twin(child)) is not None:
                setattr(parent, name, twin)
                replaced += 1
    return replaced


def _twin(linear: nn.Linear) -> nn.Module | None:
    if linear.weight.device.type != "cpu":
        return None
    if panel_linear.is_supported(linear):
        return PanelLinear(linear)
    return PackedLinear(linear) if packed_linear.is_supported(linear.weight.dtype) else None
