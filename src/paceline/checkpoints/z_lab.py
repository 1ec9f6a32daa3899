"""The z-lab dialect of DFlash checkpoints (arXiv 2602.06036), which vLLM and SGLang read too.

    config.json         Qwen3's keys, architectures ["DFlashDraftModel"], block_size, num_target_layers,
                        dflash_config {mask_token_id, target_layer_ids}
    model.safetensors   fc, hidden_norm, norm, layers.N.*; embed_tokens, lm_head, d2t, t2d: its own ones

What paceline adds (provenance: target, chat template, training) stands under the key "paceline".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.draft_weights import fill_in_vocabulary, fill_network, stored_weights
from paceline.checkpoints.files import read_weights, replacing_folder, write_checkpoint
from paceline.checkpoints.speculators import read_plain_config
from paceline.checkpoints.z_lab_config import ARCHITECTURE, parse_config, spell_config
from paceline.errors import CheckpointError
from paceline.models.dflash import DFlashNetwork
from paceline.models.dflash_config import DFlashConfig

__all__ = ["ARCHITECTURE", "empty_dflash", "load_dflash", "read_dflash_config", "save_dflash", "write_dflash"]


def load_dflash(path: Path, dtype: torch.dtype = torch.float32, num_target_layers: int | None = None) -> DFlashNetwork:
    """The draft network of a checkpoint folder, on the CPU, in evaluation mode.

    `num_target_layers` is that of the target, where the checkpoint does not say it.

    Raises:
        CheckpointError: a file is missing or damaged, or keys or weights are missing, unknown or misshaped.
        UnsupportedModelError: the network needs something that is not implemented, named in the message.
    """
    stored, weights = read_plain_config(path), read_weights(path)
    network = empty_dflash(stored, weights, path, num_target_layers)
    fill_in_vocabulary(weights, network.config, path)
    fill_network(network, weights, dtype, path, "a DFlash draft network")
    return network


def empty_dflash(
    stored: Mapping[str, Any], weights: Mapping[str, Tensor], path: Path, num_target_layers: int | None = None
) -> DFlashNetwork:
    """The network, on the meta device, that a config and weights ask for.

    Raises:
        CheckpointError: keys are missing or of a wrong kind.
        UnsupportedModelError: the network needs something that is not implemented.
    """
    config = _complete(parse_config(stored, path, num_target_layers), weights, path)
    with torch.device("meta"):
        return DFlashNetwork(config)


def read_dflash_config(path: Path) -> DFlashConfig:
    """The shape of a checkpoint, without reading its weights."""
    return parse_config(read_plain_config(path), path)


def save_dflash(
    network: DFlashNetwork,
    path: Path,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a checkpoint folder; an existing one is replaced only once the new one is complete.

    `extra` is kept under the key "paceline" and must be JSON. Borrowed weights are not written.
    """
    with replacing_folder(path) as folder:
        write_dflash(network, folder, extra, dtype)


def write_dflash(
    network: DFlashNetwork, folder: Path, extra: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.bfloat16
) -> None:
    """The files of `save_dflash`, into an existing folder."""
    write_checkpoint(folder, spell_config(network.config, dtype, extra or {}), stored_weights(network, dtype))


def _complete(config: DFlashConfig, weights: Mapping[str, Tensor], path: Path) -> DFlashConfig:
    """The config with what only the weights tell: own embedding, own head, size of the draft vocabulary."""
    reduced = config.draft_vocab_size
    if reduced is None and "d2t" in weights:
        reduced = len(weights["d2t"])
    if reduced == config.vocab_size and "d2t" not in weights:
        reduced = None
    has_embedding, has_head = "embed_tokens.weight" in weights, "lm_head.weight" in weights
    if not (has_embedding and has_head) and config.target_hidden_size != config.hidden_size:
        raise CheckpointError(
            f"{path} has hidden_size {config.hidden_size} beside a target of {config.target_hidden_size}, "
            "so it needs an embedding and a head of its own, but has not both."
        )
    return replace(config, draft_vocab_size=reduced, has_embedding=has_embedding, has_head=has_head)
