"""The dialect of published SpecBlock checkpoints (arXiv 2605.07243).

    config.json         Llama's keys, architectures ["LlamaForCausalLMSpecBlock"], diffspec_draft_token_num (K),
                        rank_classes, draft_vocab_size
    model.safetensors   input_layer.{condition_proj,fuse}, input_layer.{condition,token,query}_norm,
                        input_layer.position_queries, layers.N.*, shift_proj.N, norm, lm_head, rank_head.{0,2}; d2t, t2d

The published layout does not say which layers are tapped: those whose outputs are 1, N/2 - 1 and N - 4 of a target of N
layers, unless `target_layer_ids` names others. A checkpoint without `lm_head` borrows the target's rows of the draft
vocabulary. What paceline adds stands under the key "paceline".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.config_values import check_kinds, read_values
from paceline.checkpoints.draft_weights import METADATA, fill_in_vocabulary, fill_network, stored_weights
from paceline.checkpoints.files import few, read_config, read_weights, replacing_folder, write_checkpoint
from paceline.checkpoints.rope_keys import parse_rope, spell_rope
from paceline.checkpoints.taps import default_taps
from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.specblock import SpecBlockNetwork
from paceline.models.specblock_config import RANK_CLASSES, SpecBlockConfig

ARCHITECTURE = "LlamaForCausalLMSpecBlock"

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
_OPTIONAL = ("head_dim", "draft_vocab_size", "max_position_embeddings", "num_target_layers", "target_layer_ids")
_SLOTS = "diffspec_draft_token_num"
_RANK_WIDTH = "rank_head.0.weight"


def load_specblock(
    path: Path, num_target_layers: int | None = None, dtype: torch.dtype = torch.float32
) -> SpecBlockNetwork:
    """The draft network of a checkpoint folder, on the CPU, in evaluation mode.

    `num_target_layers` tells the tapped layers where the checkpoint does not.

    Raises:
        CheckpointError: a file is missing or damaged, or keys or weights are missing, unknown or misshaped.
        UnsupportedModelError: the network needs something that is not implemented, named in the message.
    """
    stored, weights = read_config(path), read_weights(path)
    network = empty_specblock(stored, weights, path, num_target_layers)
    fill_in_vocabulary(weights, network.config, path)
    fill_network(network, weights, dtype, path, "a SpecBlock draft network")
    return network


def empty_specblock(
    stored: Mapping[str, Any], weights: Mapping[str, Tensor], path: Path, num_target_layers: int | None = None
) -> SpecBlockNetwork:
    """The network, on the meta device, that a config and weights ask for.

    Raises:
        CheckpointError: keys are missing or of a wrong kind, or the rank head is missing.
        UnsupportedModelError: the network needs something that is not implemented.
    """
    config = _complete(parse_config(stored, path, num_target_layers), weights, path)
    with torch.device("meta"):
        return SpecBlockNetwork(config)


def save_specblock(
    network: SpecBlockNetwork,
    path: Path,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a checkpoint folder; an existing one is replaced only once the new one is complete.

    `extra` is kept under the key "paceline" and must be JSON. Borrowed weights are not written.
    """
    with replacing_folder(path) as folder:
        write_checkpoint(folder, spell_config(network.config, dtype, extra or {}), stored_weights(network, dtype))


def parse_config(stored: Mapping[str, Any], path: Path, num_target_layers: int | None = None) -> SpecBlockConfig:
    """The network's shape from a `config.json`; `path` is for errors. Llama's other keys are passed over.

    Raises:
        CheckpointError: it is not of this dialect, or keys are missing or of a wrong kind.
        UnsupportedModelError: it asks for something that is not implemented.
    """
    came = stored.get("architectures")
    if came != [ARCHITECTURE]:
        raise CheckpointError(f"{path} holds the architectures {came}, but a SpecBlock drafter has [{ARCHITECTURE!r}].")
    missing = sorted(name for name in (*_SIZES, _SLOTS) if stored.get(name) is None)
    if missing:
        raise CheckpointError(f"{path} has a config.json without the required {few(missing)}.")
    _check_supported(stored, path)
    values = {name: stored[name] for name in (*_SIZES, *_OPTIONAL, _SLOTS) if stored.get(name) is not None}
    check_kinds(values, path)
    values["num_slots"] = values.pop(_SLOTS)
    values.setdefault("head_dim", values["hidden_size"] // max(values["num_attention_heads"], 1))
    values.setdefault("num_target_layers", num_target_layers)
    if values["num_target_layers"] is None:
        raise CheckpointError(
            f"{path} does not say how many layers its target has, so which of them it taps is unknown; "
            "load it together with its target."
        )
    values["target_layer_ids"] = tuple(values.get("target_layer_ids") or default_taps(values["num_target_layers"]))
    with read_values(path):
        return SpecBlockConfig(
            **values,
            shifts=bool(stored.get("shifts", True)),
            inherits=bool(stored.get("inherits", True)),
            rms_norm_eps=float(stored.get("rms_norm_eps", 1e-6)),
            rope=parse_rope(stored, path),
        )


def spell_config(config: SpecBlockConfig, dtype: torch.dtype, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.json` of a network whose weights are stored in `dtype`."""
    sizes = asdict(config)
    spelled: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        _SLOTS: config.num_slots,
        "rank_classes": RANK_CLASSES,
        **{name: sizes[name] for name in _SIZES},
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "head_dim": config.head_dim,
        "num_target_layers": config.num_target_layers,
        "target_layer_ids": list(config.target_layer_ids),
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        **spell_rope(config.rope),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }
    spelled |= {name: False for name in ("shifts", "inherits") if not getattr(config, name)}
    return spelled | ({METADATA: dict(extra)} if extra else {})


def _check_supported(stored: Mapping[str, Any], path: Path) -> None:
    check_kinds({"rank_classes": stored.get("rank_classes", RANK_CLASSES)}, path)
    only = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rank_classes": RANK_CLASSES}
    for key, known in only.items():
        if stored.get(key, known) != known:
            raise UnsupportedModelError(f"{path} has {key} {stored[key]!r}, but only {known!r} is implemented.")


def _complete(config: SpecBlockConfig, weights: Mapping[str, Tensor], path: Path) -> SpecBlockConfig:
    """The config with what only the weights tell: an embedding and a head of its own, the width of the rank head, and
    whether the draft vocabulary is the target's whole."""
    if _RANK_WIDTH not in weights:
        raise CheckpointError(f"{path} lacks the weight {_RANK_WIDTH}.")
    reduced = config.draft_vocab_size
    if reduced == config.vocab_size and "d2t" not in weights:
        reduced = None
    return replace(
        config,
        draft_vocab_size=reduced,
        has_embedding="embed_tokens.weight" in weights,
        has_head="lm_head.weight" in weights,
        rank_hidden_size=weights[_RANK_WIDTH].shape[0],
    )
