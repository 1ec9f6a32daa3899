"""The few weights of a target that a drafter shares or starts from, read without building the target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.checkpoints.files import read_config
from paceline.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


def read_target_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a target, or the part of it that describes its language model.

    Raises:
        CheckpointError: it is not that of a language model.
    """
    config = read_config(folder)
    nested = config.get("text_config")
    config = config | nested if isinstance(nested, dict) else config
    lacking = [key for key in ("hidden_size", "vocab_size", "num_hidden_layers") if type(config.get(key)) is not int]
    if lacking:
        raise CheckpointError(f"the target {str(folder)!r} has no {lacking[0]} in its config.json; give another one.")
    return config


class TargetWeights:
    """Named access to a Hugging Face checkpoint folder (one safetensors file, or several with an index)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_target_config(folder)
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self._files = _weight_map(index)
        else:
            with self._open("model.safetensors") as file:
                self._files = dict.fromkeys(file.keys(), "model.safetensors")

    def names(self) -> list[str]:
        """All weights of the checkpoint."""
        return list(self._files)

    def get(self, name: str) -> Tensor | None:
        """The weight, or None where the checkpoint has none of that name."""
        return self[name] if name in self._files else None

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._files:
            raise CheckpointError(
                f"the target in {self.folder} has no weight {name}; paceline trains drafters for checkpoints "
                "that name their weights as Llama and Qwen do"
            )
        try:
            with self._open(self._files[name]) as file:
                tensor: Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(
                f"{self.folder / self._files[name]} does not hold {name} as the index says ({error})."
            ) from error
        return tensor

    def embedding(self) -> Tensor:
        """Float[V, H]"""
        return self[EMBEDDING].float()

    def head(self) -> Tensor:
        """Float[V, H]: the embedding itself where the target ties the two."""
        head = self.get(HEAD)
        return self.embedding() if head is None else head.float()

    def _open(self, name: str) -> Any:
        try:
            return safe_open(self.folder / name, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"the target's weights {self.folder / name} cannot be read ({error}); "
                "give the folder of a Hugging Face checkpoint in safetensors form"
            ) from error


def _weight_map(index: Path) -> dict[str, str]:
    """Which file holds each weight, from the index of a sharded checkpoint."""
    try:
        found: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index} is not the index of a sharded checkpoint ({error}).") from error
    return found
