"""A clock whose laps are the device's: where a device works behind the host's back, each lap waits for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.metrics import StageClock


def device_clock(device: torch.device) -> StageClock:
    """A clock for measuring on this device; on a CPU there is nothing to wait for."""
    return StageClock(device_wait(device))


def device_wait(device: torch.device) -> Callable[[], None] | None:
    """What waits until the device is done; None where it always is."""
    if device.type == "cuda":
        return torch.cuda.synchronize
    return torch.mps.synchronize if device.type == "mps" else None
