"""The dialect of EAGLE-3 checkpoints (arXiv 2503.01840), as its authors and SpecForge write them, and vLLM reads them.

    config.json         Llama's keys, draft_vocab_size, norm_before_residual; where the tapped layers are named, in
                        `eagle_config`: the layers whose outputs are read; at the top level, as vLLM has it: the
                        layers whose inputs are, so one more
    model.safetensors   midlayer.* (or layers.0.*), fc, norm, lm_head, d2t, t2d, and at times embed_tokens

A `model.` before a name and stored frequencies are passed over. `num_hidden_layers` may be the target's; there is one
layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.config_values import check_kinds, read_object, read_values
from paceline.checkpoints.draft_weights import METADATA, fill_in_vocabulary, fill_network, stored_weights
from paceline.checkpoints.files import few, read_config, read_weights, replacing_folder, write_checkpoint
from paceline.checkpoints.rope_keys import parse_rope, spell_rope
from paceline.checkpoints.taps import default_taps
from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.eagle3 import Eagle3Network
from paceline.models.eagle3_config import Eagle3Config

ARCHITECTURE = "LlamaForCausalLMEagle3"

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
_OPTIONAL = ("head_dim", "draft_vocab_size", "target_hidden_size", "max_position_embeddings", "num_target_layers")
_TAPS = "eagle_aux_hidden_state_layer_ids"
_LAYER = "midlayer."


def load_eagle3(path: Path, num_target_layers: int | None = None, dtype: torch.dtype = torch.float32) -> Eagle3Network:
    """The draft network of a checkpoint folder, on the CPU, in evaluation mode.

    `num_target_layers` tells the tapped layers where the checkpoint does not.

    Raises:
        CheckpointError: a file is missing or damaged, or keys or weights are missing, unknown or misshaped.
        UnsupportedModelError: the network needs something that is not implemented, named in the message.
    """
    stored = read_config(path)
    weights = renamed(read_weights(path), path)
    config = complete(parse_config(stored, path, num_target_layers), weights, path)
    with torch.device("meta"):
        network = Eagle3Network(config)
    fill_in_vocabulary(weights, config, path)
    fill_network(network, weights, dtype, path, "an EAGLE-3 draft network")
    return network


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
        write_checkpoint(folder, spell_config(network.config, dtype, extra or {}), stored_weights(network, dtype))


def parse_config(stored: Mapping[str, Any], path: Path, num_target_layers: int | None = None) -> Eagle3Config:
    """The network's shape from a `config.json`; `path` is for errors. Llama's other keys are passed over.

    Raises:
        CheckpointError: it is not of this dialect, or keys are missing or of a wrong kind.
        UnsupportedModelError: it asks for something that is not implemented.
    """
    came = stored.get("architectures")
    if came != [ARCHITECTURE]:
        raise CheckpointError(f"{path} holds the architectures {came}, but an EAGLE-3 drafter has [{ARCHITECTURE!r}].")
    taps = read_object(stored, "eagle_config", path).get(_TAPS)
    if taps is None and stored.get(_TAPS) is not None:
        taps = before(stored[_TAPS], path)
    return shape_of(stored, stored, taps, path, num_target_layers)


def before(inputs: Any, path: Path) -> list[int]:
    """The layers whose outputs are the inputs of others.

    Raises:
        CheckpointError: they are no list of whole numbers.
    """
    check_kinds({"target_layer_ids": inputs}, path)
    return [layer - 1 for layer in inputs]


def shape_of(
    stored: Mapping[str, Any],
    layer: Mapping[str, Any],
    taps: list[int] | None,
    path: Path,
    num_target_layers: int | None,
) -> Eagle3Config:
    """The network's shape from the keys of a checkpoint, those of its layer, and the layers that it taps (None: the
    usual ones).

    Raises:
        CheckpointError: keys are missing or of a wrong kind.
        UnsupportedModelError: it asks for something that is not implemented.
    """
    own = {**layer, **{key: value for key, value in stored.items() if value is not None}}
    missing = sorted(name for name in _SIZES if own.get(name) is None)
    if missing:
        raise CheckpointError(f"{path} has a config.json without the required {few(missing)}.")
    _check_supported(own, path)
    values = {name: own[name] for name in (*_SIZES, *_OPTIONAL) if own.get(name) is not None}
    check_kinds(values | ({} if taps is None else {"target_layer_ids": taps}), path)
    values.setdefault("head_dim", values["hidden_size"] // max(values["num_attention_heads"], 1))
    values.setdefault("num_target_layers", num_target_layers)
    if values["num_target_layers"] is None:
        raise CheckpointError(
            f"{path} does not say how many layers its target has, which tells the layers that it taps; "
            "load it together with its target."
        )
    values["target_layer_ids"] = tuple(default_taps(values["num_target_layers"]) if taps is None else taps)
    with read_values(path):
        return Eagle3Config(
            **values,
            # what is borrowed is known once the weights are
            has_embedding=True,
            norm_before_residual=bool(own.get("norm_before_residual", False)),
            rms_norm_eps=float(own.get("rms_norm_eps", 1e-6)),
            rope=parse_rope(layer, path),
        )


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
        "eagle_config": {_TAPS: list(config.target_layer_ids), "use_aux_hidden_state": True},
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


def renamed(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Weights by the names that the network has for them.

    Raises:
        CheckpointError: two names mean one weight.
    """
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        plain = name.removeprefix("model.")
        if plain.endswith("rotary_emb.inv_freq"):  # the config says it
            continue
        plain = plain.replace("layers.0.", _LAYER, 1) if plain.startswith("layers.0.") else plain
        if plain in found:
            raise CheckpointError(f"{path} holds {plain} twice, under two names.")
        found[plain] = weight
    return found


def complete(config: Eagle3Config, weights: Mapping[str, Tensor], path: Path) -> Eagle3Config:
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


def _check_supported(own: Mapping[str, Any], path: Path) -> None:
    only = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    for key, known in only.items():
        if own.get(key, known) != known:
            raise UnsupportedModelError(f"{path} has {key} {own[key]!r}, but only {known!r} is implemented.")
