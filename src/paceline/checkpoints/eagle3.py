"""The dialect of EAGLE-3 checkpoints (arXiv 2503.01840), as its authors and SpecForge write them, and vLLM reads them.

    config.json         Llama's keys, draft_vocab_size, norm_before_residual; where the tapped layers are named, in
                        `eagle_config`: the layers whose outputs are read; at the top level, as vLLM has it: the
                        layers whose inputs are, so one more; both are written
    model.safetensors   midlayer.* (or layers.0.*), fc, norm, lm_head, d2t, t2d, and at times embed_tokens

A `model.` before a name and stored frequencies are passed over. `num_hidden_layers` may be the target's; there is one
layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.config_values import read_values
from paceline.checkpoints.draft_weights import fill_in_vocabulary, fill_network, stored_weights
from paceline.checkpoints.eagle3_config import parse_config, spell_config
from paceline.checkpoints.files import read_weights, replacing_folder, write_checkpoint
from paceline.checkpoints.speculators import read_plain_config
from paceline.errors import CheckpointError
from paceline.models.eagle3 import Eagle3Network
from paceline.models.eagle3_config import Eagle3Config

LAYER = "midlayer."


def load_eagle3(path: Path, num_target_layers: int | None = None, dtype: torch.dtype = torch.float32) -> Eagle3Network:
    """The draft network of a checkpoint folder, on the CPU, in evaluation mode.

    `num_target_layers` tells the tapped layers where the checkpoint does not.

    Raises:
        CheckpointError: a file is missing or damaged, or keys or weights are missing, unknown or misshaped.
        UnsupportedModelError: the network needs something that is not implemented, named in the message.
    """
    weights = named_weights(path)
    network = empty_eagle3(read_plain_config(path), weights, path, num_target_layers)
    fill_in_vocabulary(weights, network.config, path)
    fill_network(network, weights, dtype, path, "an EAGLE-3 draft network")
    return network


def empty_eagle3(
    stored: Mapping[str, Any], weights: Mapping[str, Tensor], path: Path, num_target_layers: int | None = None
) -> Eagle3Network:
    """The network, on the meta device, that a config and weights by its names ask for.

    Raises:
        CheckpointError: keys are missing or of a wrong kind.
        UnsupportedModelError: the network needs something that is not implemented.
    """
    config = _complete(parse_config(stored, path, num_target_layers), weights, path)
    with torch.device("meta"):
        return Eagle3Network(config)


def save_eagle3(
    network: Eagle3Network,
    path: Path,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a checkpoint folder; an existing one is replaced only once the new one is complete.

    `extra` is kept under the key "paceline" and must be JSON. Borrowed weights are not written.
    """
    with replacing_folder(path) as folder:
        write_eagle3(network, folder, extra, dtype)


def write_eagle3(
    network: Eagle3Network, folder: Path, extra: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.bfloat16
) -> None:
    """The files of `save_eagle3`, into an existing folder."""
    write_checkpoint(folder, spell_config(network.config, dtype, extra or {}), stored_weights(network, dtype))


def named_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint folder by the names that the network has for them.

    Raises:
        CheckpointError: they cannot be read, or two names mean one weight.
    """
    found: dict[str, Tensor] = {}
    for name, weight in read_weights(path).items():
        plain = name.removeprefix("model.")
        if plain.endswith("rotary_emb.inv_freq"):  # the config says it
            continue
        plain = plain.replace("layers.0.", LAYER, 1) if plain.startswith("layers.0.") else plain
        if plain in found:
            raise CheckpointError(f"{path} holds {plain} twice, under two names.")
        found[plain] = weight
    return found


def _complete(config: Eagle3Config, weights: Mapping[str, Tensor], path: Path) -> Eagle3Config:
    """The config with what only the weights tell: an embedding and a head of its own, and whether the draft vocabulary
    is the target's whole.

    Raises:
        CheckpointError: it would borrow from a target of another hidden size.
    """
    reduced = config.draft_vocab_size
    if reduced == config.vocab_size and "d2t" not in weights:
        reduced = None
    with read_values(path):
        return replace(
            config,
            draft_vocab_size=reduced,
            has_embedding="embed_tokens.weight" in weights,
            has_head="lm_head.weight" in weights,
        )
