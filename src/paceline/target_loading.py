"""From names and paths to a target: a Hugging Face model on its device, in its dtype."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.errors import CheckpointError, InputError
from paceline.kernels import prepare_for_device
from paceline.sources import first_line, target_path
from paceline.target.hugging_face import HuggingFaceTarget


def load_target(
    name: str | None = None, dtype: str | torch.dtype | None = None, device: str | None = None, prepare: bool = True
) -> HuggingFaceTarget:
    """The target alone; `prepare` swaps in the fast modules for its device."""
    model = load_hugging_face(name, dtype, device)
    target = HuggingFaceTarget(model, name or "SmolLM2-135M-Instruct")
    if prepare:
        prepare_for_device(model)
    return target


def load_hugging_face(name: str | None, dtype: str | torch.dtype | None, device: str | None) -> Any:
    """The plain Hugging Face model, as `generate` would use it."""
    path = target_path(name)
    chosen = device_named(device)
    try:
        config = AutoConfig.from_pretrained(path)
        if config.is_encoder_decoder:
            raise InputError(f"{path} is an encoder-decoder model, and paceline serves decoder-only models.")
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=_dtype(dtype, chosen))
        return model.to(chosen).eval().requires_grad_(False)
    except InputError:
        raise
    except Exception as error:  # transformers raises many kinds for an unusable folder or name
        raise CheckpointError(f"the target {path!r} cannot be loaded: {first_line(error)}") from error


def device_named(name: str | None) -> torch.device:
    if name is None:
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(kind)
    if name == "meta":
        raise InputError("device 'meta' holds no numbers; name one that computes, such as cpu.")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here: {first_line(error)}") from error


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in known:
        raise InputError(f"dtype is {dtype!r}, but must be one of {', '.join(known)}.")
    return known[dtype]
