"""Optional fast twins of plain PyTorch modules, chosen in `prepare`."""

from paceline.kernels.prepare import prepare_for_device

__all__ = ["prepare_for_device"]
