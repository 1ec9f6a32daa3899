"""The dialect of parallel draft heads, which is ours: published Medusa heads read the last layer alone, and not the
anchor.

    config.json         architectures ["PacelineParallelHeads"], num_heads, num_layers, target_layer_ids, sizes
    model.safetensors   fc, hidden_norm, token_proj, heads.N.M.linear, norm; its own embed_tokens and lm_head; d2t, t2d
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.config_values import check_kinds, read_values
from paceline.checkpoints.draft_weights import METADATA, fill_in_vocabulary, fill_network, stored_weights
from paceline.checkpoints.files import few, read_config, read_weights, replacing_folder, write_checkpoint
from paceline.errors import CheckpointError
from paceline.models.heads import HeadsNetwork
from paceline.models.heads_config import HeadsConfig

ARCHITECTURE = "PacelineParallelHeads"

_REQUIRED = ("hidden_size", "vocab_size", "num_heads", "target_layer_ids", "num_target_layers")
_OPTIONAL = ("num_layers", "draft_vocab_size", "target_hidden_size")


def load_heads(path: Path, dtype: torch.dtype = torch.float32) -> HeadsNetwork:
    """The draft network of a checkpoint folder, on the CPU, in evaluation mode.

    Raises:
        CheckpointError: a file is missing or damaged, or keys or weights are missing, unknown or misshaped.
    """
    stored, weights = read_config(path), read_weights(path)
    network = empty_heads(stored, weights, path)
    fill_in_vocabulary(weights, network.config, path)
    fill_network(network, weights, dtype, path, "a network of parallel heads")
    return network


def empty_heads(
    stored: Mapping[str, Any], weights: Mapping[str, Tensor], path: Path, num_target_layers: int | None = None
) -> HeadsNetwork:
    """The network, on the meta device, that a config and weights ask for; the config says all by itself.

    Raises:
        CheckpointError: keys are missing or of a wrong kind.
    """
    came = stored.get("architectures")
    if came != [ARCHITECTURE]:
        raise CheckpointError(f"{path} holds the architectures {came}, but parallel heads have [{ARCHITECTURE!r}].")
    missing = sorted(name for name in _REQUIRED if stored.get(name) is None)
    if missing:
        raise CheckpointError(f"{path} has a config.json without the required {few(missing)}.")
    values = {name: stored[name] for name in (*_REQUIRED, *_OPTIONAL) if stored.get(name) is not None}
    check_kinds(values, path)
    values["target_layer_ids"] = tuple(values["target_layer_ids"])
    with read_values(path):
        config = HeadsConfig(
            **values,
            rms_norm_eps=float(stored.get("rms_norm_eps", 1e-6)),
            has_embedding="embed_tokens.weight" in weights,
            has_head="lm_head.weight" in weights,
        )
    with torch.device("meta"):
        return HeadsNetwork(config)


def save_heads(
    network: HeadsNetwork,
    path: Path,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a checkpoint folder; an existing one is replaced only once the new one is complete.

    `extra` is kept under the key "paceline" and must be JSON. Borrowed weights are not written.
    """
    sizes = asdict(network.config)
    spelled: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        **{name: sizes[name] for name in (*_REQUIRED, *_OPTIONAL)},
        "target_layer_ids": list(network.config.target_layer_ids),
        "rms_norm_eps": network.config.rms_norm_eps,
        "dtype": str(dtype).removeprefix("torch."),
    }
    spelled |= {METADATA: dict(extra)} if extra else {}
    with replacing_folder(path) as folder:
        write_checkpoint(folder, spelled, stored_weights(network, dtype))
