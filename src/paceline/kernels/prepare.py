"""The one place where fast twins are chosen for a device."""

from __future__ import annotations

from torch import nn

from paceline.kernels.packed_linear import PackedLinear, is_supported


def prepare_for_device(model: nn.Module) -> int:
    """Replace a model's plain modules, in place, by their fast twins; how many were replaced.

    On a CPU every float32 linear layer (and bfloat16 where the processor multiplies it) becomes a
    `PackedLinear`; elsewhere, and where the operator is missing, the plain modules stay.
    """
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _can_pack(child):
                setattr(parent, name, PackedLinear(child))
                replaced += 1
    return replaced


def _can_pack(linear: nn.Linear) -> bool:
    weight = linear.weight
    return weight.device.type == "cpu" and is_supported(weight.dtype)
