"""The `config.json` of the z-lab dialect, to and from `DFlashConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoints.config_values import check_kinds, read_object, read_values
from paceline.checkpoints.draft_weights import METADATA
from paceline.checkpoints.files import few
from paceline.checkpoints.rope_keys import parse_rope, spell_rope
from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.dflash_config import DFlashConfig

ARCHITECTURE = "DFlashDraftModel"

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "num_target_layers",
)
_OWN_KEYS = ("block_size", "mask_token_id", "target_layer_ids")  # in dflash_config or at the top level
_OPTIONAL = ("head_dim", "draft_vocab_size", "target_hidden_size", "max_position_embeddings")


def parse_config(stored: Mapping[str, Any], path: Path, num_target_layers: int | None = None) -> DFlashConfig:
    """The network's shape from a `config.json`; `path` is for errors. Qwen3's other keys are passed over.

    `num_target_layers` is that of the target, where the checkpoint does not say it.

    Raises:
        CheckpointError: it is not of this dialect, or keys are missing or of a wrong kind.
        UnsupportedModelError: it asks for something that is not implemented.
    """
    _check_dialect(stored, path)
    own = {"num_target_layers": num_target_layers, **stored, **read_object(stored, "dflash_config", path)}
    missing = sorted(name for name in (*_SIZES, *_OWN_KEYS) if own.get(name) is None)
    if missing:
        raise CheckpointError(f"{path} has a config.json without the required {few(missing)}.")
    _check_supported(stored, path)
    values = {name: own[name] for name in (*_SIZES, *_OWN_KEYS, *_OPTIONAL) if own.get(name) is not None}
    check_kinds(values, path)
    values["target_layer_ids"] = tuple(values["target_layer_ids"])
    values.setdefault("head_dim", values["hidden_size"] // max(values["num_attention_heads"], 1))
    with read_values(path):
        return DFlashConfig(**values, rms_norm_eps=float(own.get("rms_norm_eps", 1e-6)), rope=parse_rope(stored, path))


def spell_config(config: DFlashConfig, dtype: torch.dtype, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.json` of a network whose weights are stored in `dtype`."""
    sizes = asdict(config)
    spelled: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "block_size": config.block_size,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
        **{name: sizes[name] for name in _SIZES},
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        **spell_rope(config.rope),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "dtype": str(dtype).removeprefix("torch."),
    }
    if config.draft_vocab_size is not None:
        spelled["draft_vocab_size"] = config.draft_vocab_size
    if config.target_hidden_size != config.hidden_size:
        spelled["target_hidden_size"] = config.target_hidden_size
    return spelled | ({METADATA: dict(extra)} if extra else {})


def _check_dialect(stored: Mapping[str, Any], path: Path) -> None:
    came = stored.get("architectures")
    if came != [ARCHITECTURE]:
        raise CheckpointError(f"{path} holds the architectures {came}, but a DFlash drafter has [{ARCHITECTURE!r}].")


def _check_supported(stored: Mapping[str, Any], path: Path) -> None:
    kinds_of_layers, window = stored.get("layer_types"), stored.get("sliding_window")
    if kinds_of_layers is not None and not isinstance(kinds_of_layers, list):
        raise CheckpointError(f"{path} has layer_types {kinds_of_layers!r} in its config.json, but it must be a list.")
    if window is not None:
        check_kinds({"sliding_window": window}, path)
    windowed = stored.get("sliding_window") is not None and stored.get("use_sliding_window") is not False
    if windowed:
        raise UnsupportedModelError(
            f"{path} has sliding_window {stored['sliding_window']}, but only full attention is implemented."
        )
    kinds = set(stored.get("layer_types") or []) - {"full_attention"}
    if kinds:
        raise UnsupportedModelError(
            f"{path} has layers of {few(sorted(map(str, kinds)))}, but only full_attention is implemented."
        )
    for key, only in {"hidden_act": "silu", "attention_bias": False}.items():
        if stored.get(key, only) != only:
            raise UnsupportedModelError(f"{path} has {key} {stored[key]!r}, but only {only!r} is implemented.")
