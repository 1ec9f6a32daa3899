"""`python -m paceline.embedded_conversion GGUF FOLDER`: GGUF to float32 safetensors, tokenizer included."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(gguf: Path, folder: Path) -> None:
    """Write `gguf` to `folder` in Hugging Face format: weights dequantised, chat template kept."""
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _forget_quantization(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _forget_quantization(model: Any) -> None:
    """The weights are plain float32 by now, but the model names its GGUF quantizer, which cannot save."""
    model.config.__dict__.pop("quantization_config", None)
    model.is_quantized = False
    model.hf_quantizer = None
    model.quantization_method = None


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
