"""Checks of a drafter's rotary embedding by what its own checkpoint says."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paceline.checkpoints.files import read_weights
from paceline.doctor.finding import Finding, error
from paceline.doctor.opened import Opened
from paceline.models.rope import frequencies

_STORED = "rotary_emb.inv_freq"
_INTERLEAVED = ("rope_interleaved", "rope_interleave", "is_neox_style")
"""Keys that name the style; the last one means the opposite of the others."""
_STEPS = 8
"""Steps of the stored numbers' precision that a frequency may be off."""


def check_style(opened: Opened) -> Iterator[Finding]:
    """Halves of a head turn together here; the other style pairs neighbours."""
    for key in _INTERLEAVED:
        said = opened.plain.get(key)
        if said is not None and bool(said) != (key == "is_neox_style"):
            yield error(
                "RoPE",
                f"config.json has {key} {said!r}, so neighbouring dimensions turn together",
                "Networks here, as Llama's and Qwen's in most libraries, turn the halves of a head together.",
                "Permute the rows of q_proj and k_proj to the split style, and take the key out.",
            )


def check_frequencies(opened: Opened) -> Iterator[Finding]:
    """Frequencies that the checkpoint holds against those that its config.json gives."""
    if not hasattr(opened.config, "rope"):
        return
    config = opened.config
    ours = frequencies(config.rope, config.head_dim, torch.device("cpu"))
    for name, stored in read_weights(opened.path).items():
        if not name.endswith(_STORED):
            continue
        precision = torch.finfo(stored.dtype)
        off, least = _STEPS * precision.eps, _STEPS * precision.smallest_normal
        if stored.shape != ours.shape or not torch.allclose(stored.float(), ours, rtol=off, atol=least):
            yield error(
                "RoPE",
                f"{name} holds other frequencies than rope_theta, rope_scaling and partial_rotary_factor give",
                "config.json, which is believed, does not say how it was trained.",
                "Set these keys to those of the training.",
            )
