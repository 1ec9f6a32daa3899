"""The speculators dialect, which vLLM reads: read as if it were written in the dialect of the method's authors.

    config.json         speculators_model_type "dflash" or "eagle3", transformer_layer_config {Llama's or Qwen3's keys},
                        and beside it block_size, mask_token_id, draft_vocab_size, norm_before_residual, ...
    model.safetensors   the names of the method's own dialect

Tapped layers are named by the layers whose inputs they are, so by one more than the layers whose outputs are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.checkpoints import eagle3_config, z_lab_config
from paceline.checkpoints.config_values import read_object
from paceline.checkpoints.draft_weights import METADATA
from paceline.checkpoints.files import few, read_config
from paceline.checkpoints.taps import outputs_of
from paceline.errors import CheckpointError, UnsupportedModelError

KIND = "speculators_model_type"
LAYER_CONFIG = "transformer_layer_config"
_PLAIN = {
    "norm_before_fc": False,
    "norm_output": False,
    "fc_norm": False,
    "projector_type": "dflash",
    "shift_label": False,
    "sample_from_anchor": False,
}
"""Keys that change the network or what it was trained for, with the only values that are implemented."""


def read_plain_config(path: Path) -> dict[str, Any]:
    """The `config.json` of a drafter's checkpoint, translated where it is in this dialect.

    Raises:
        CheckpointError: it cannot be read, or is of a kind that is not known.
        UnsupportedModelError: it asks for something that is not implemented.
    """
    stored = read_config(path)
    kind = stored.get(KIND)
    if kind is None:
        return eagle3_config.named(stored)
    translators = {"dflash": _as_z_lab, "eagle3": _as_eagle3}
    if kind not in translators:
        raise CheckpointError(
            f"{path} is a speculators checkpoint of kind {kind!r}, but known are {few(sorted(translators))}."
        )
    for key, only in _PLAIN.items():
        if stored.get(key) not in (None, only):
            raise UnsupportedModelError(f"{path} has {key} {stored[key]!r}, but only {only!r} is implemented.")
    layer = read_object(stored, LAYER_CONFIG, path)
    shared = {**layer, "draft_vocab_size": stored.get("draft_vocab_size")}
    beside = ("target_hidden_size", "num_target_layers", METADATA)
    shared |= {key: stored[key] for key in beside if stored.get(key) is not None}
    return shared | translators[kind](stored, path)


def _as_z_lab(stored: Mapping[str, Any], path: Path) -> dict[str, Any]:
    own = {"mask_token_id": stored.get("mask_token_id")}
    taps = stored.get("aux_hidden_state_layer_ids")
    if taps is not None:
        own["target_layer_ids"] = list(outputs_of(taps, path))
    return {
        "architectures": [z_lab_config.ARCHITECTURE],
        "block_size": stored.get("block_size"),
        "dflash_config": own,
    }


def _as_eagle3(stored: Mapping[str, Any], path: Path) -> dict[str, Any]:
    taps = stored.get(eagle3_config.TAPS)
    return {
        "architectures": [eagle3_config.ARCHITECTURE],
        "norm_before_residual": bool(stored.get("norm_before_residual", False)),
        "eagle_config": {} if taps is None else {eagle3_config.TAPS: list(outputs_of(taps, path))},
    }
