"""Where a figure comes from: versions, machine, target, settings."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch
import transformers

from paceline.processor import processor_name
from paceline.sources import template_digest
from paceline.target.base import TargetInfo
from paceline.text_model import THINKING


def provenance(info: TargetInfo, tokenizer: Any, command: list[str], thinking: bool | None) -> dict[str, Any]:
    """The facts that METHODS section 7 asks to print beside every number; `thinking` is what was asked of the chat
    template."""
    template = tokenizer.chat_template or ""
    return {
        "command": command,
        "target": info.name,
        "dtype": str(info.dtype).removeprefix("torch."),
        "device": str(info.device),
        "accelerator": _accelerator(info.device),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "processor": processor_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "chat_template_sha256": template_digest(template),
        "thinking_mode": _thinking_mode(template, thinking),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tau": "tokens per round, bonus included",
        "time": "wall-clock from prompt to last token, prefill included; median of the repeats",
    }


def _thinking_mode(template: str, thinking: bool | None) -> str:
    if THINKING not in template:
        return "none in the template"
    return {None: "as the template has it", True: "on", False: "off"}[thinking]


def _accelerator(device: torch.device) -> str:
    """What computes where the processor does not."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "none" if device.type == "cpu" else device.type
