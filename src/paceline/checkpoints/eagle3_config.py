"""The `config.json` of EAGLE-3 checkpoints, to and from `Eagle3Config`."""

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
from paceline.checkpoints.taps import default_taps, inputs_of, outputs_of
from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.eagle3_config import Eagle3Config

ARCHITECTURE = "LlamaForCausalLMEagle3"
_OTHER_NAMES = ("Eagle3LlamaForCausalLM", "LlamaEagle3DraftModel")
_EARLIER_ARCHITECTURE = "LlamaForCausalLM"
TAPS = "eagle_aux_hidden_state_layer_ids"

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
_OPTIONAL = ("head_dim", "draft_vocab_size", "target_hidden_size", "max_position_embeddings", "num_target_layers")


def parse_config(stored: Mapping[str, Any], path: Path, num_target_layers: int | None = None) -> Eagle3Config:
    """The network's shape from a `config.json`; `path` is for errors. Llama's other keys are passed over.

    `num_target_layers` tells the tapped layers where the checkpoint does not.

    Raises:
        CheckpointError: it is not of this dialect, or keys are missing or of a wrong kind.
        UnsupportedModelError: it asks for something that is not implemented.
    """
    came = stored.get("architectures")
    if came != [ARCHITECTURE]:
        raise CheckpointError(f"{path} holds the architectures {came}, but an EAGLE-3 drafter has [{ARCHITECTURE!r}].")
    missing = sorted(name for name in _SIZES if stored.get(name) is None)
    if missing:
        raise CheckpointError(f"{path} has a config.json without the required {few(missing)}.")
    _check_supported(stored, path)
    values = {name: stored[name] for name in (*_SIZES, *_OPTIONAL) if stored.get(name) is not None}
    check_kinds(values, path)
    values.setdefault("head_dim", values["hidden_size"] // max(values["num_attention_heads"], 1))
    values.setdefault("num_target_layers", num_target_layers)
    if values["num_target_layers"] is None:
        raise CheckpointError(
            f"{path} does not say how many layers its target has, which tells the layers that it taps; "
            "load it together with its target."
        )
    values["target_layer_ids"] = _taps(stored, values["num_target_layers"], path)
    with read_values(path):
        return Eagle3Config(
            **values,
            has_embedding=True,  # what is borrowed is known once the weights are
            norm_before_residual=bool(stored.get("norm_before_residual", False)),
            rms_norm_eps=float(stored.get("rms_norm_eps", 1e-6)),
            rope=parse_rope(stored, path),
        )


def named(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the dialect's architecture, which some write otherwise; its authors' first checkpoints have
    Llama's, beside a vocabulary of their own, which no target has."""
    came = stored.get("architectures")
    is_earlier = came == [_EARLIER_ARCHITECTURE] and "draft_vocab_size" in stored
    is_other = came in [[name] for name in _OTHER_NAMES]
    return {**stored, **({"architectures": [ARCHITECTURE]} if is_earlier or is_other else {})}


def spell_config(config: Eagle3Config, dtype: torch.dtype, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.json` of a network whose weights are stored in `dtype`."""
    sizes = asdict(config)
    spelled: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **{name: sizes[name] for name in _SIZES},
        "num_hidden_layers": 1,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "head_dim": config.head_dim,
        "num_target_layers": config.num_target_layers,
        "norm_before_residual": config.norm_before_residual,
        "eagle_config": {TAPS: list(config.target_layer_ids), "use_aux_hidden_state": True},
        TAPS: inputs_of(config.target_layer_ids),
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        **spell_rope(config.rope),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }
    return spelled | ({METADATA: dict(extra)} if extra else {})


def _taps(stored: Mapping[str, Any], num_layers: int, path: Path) -> tuple[int, ...]:
    """The layers whose outputs are read: named as such in `eagle_config`, or by the layers whose inputs they are."""
    outputs, inputs = read_object(stored, "eagle_config", path).get(TAPS), stored.get(TAPS)
    if outputs is not None:
        check_kinds({"target_layer_ids": outputs}, path)
        return tuple(outputs)
    return default_taps(num_layers) if inputs is None else outputs_of(inputs, path)


def _check_supported(own: Mapping[str, Any], path: Path) -> None:
    only = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    only |= dict.fromkeys(("norm_before_fc", "norm_output", "fc_norm"), False)
    for key, known in only.items():
        if own.get(key, known) != known:
            raise UnsupportedModelError(f"{path} has {key} {own[key]!r}, but only {known!r} is implemented.")
