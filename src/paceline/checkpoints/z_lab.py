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

from paceline.checkpoints.files import few, read_config, read_weights, replacing_folder, write_checkpoint
from paceline.checkpoints.z_lab_config import ARCHITECTURE, METADATA, parse_config, spell_config
from paceline.errors import CheckpointError
from paceline.models.dflash import DFlashNetwork
from paceline.models.dflash_config import DFlashConfig

__all__ = ["ARCHITECTURE", "check_fits", "load_dflash", "read_dflash_config", "read_metadata", "save_dflash"]


def load_dflash(path: Path, dtype: torch.dtype = torch.float32) -> DFlashNetwork:
    """The draft network of a checkpoint folder, on the CPU, in evaluation mode.

    Raises:
        CheckpointError: a file is missing or damaged, or keys or weights are missing, unknown or misshaped.
        UnsupportedModelError: the network needs something that is not implemented, named in the message.
    """
    config = parse_config(read_config(path), path)
    weights = read_weights(path)
    config = _complete(config, weights, path)
    with torch.device("meta"):
        network = DFlashNetwork(config)
    _fill_in_vocabulary(weights, config, path)
    _check_names_and_shapes(weights, network.state_dict(), path)
    for name, weight in weights.items():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise CheckpointError(f"{path} holds NaN or infinity in {name}; download or train it again.")
    ready = {name: _as_stored(name, weight, dtype) for name, weight in weights.items()}
    network.load_state_dict(ready, assign=True)
    return network.eval()


def read_dflash_config(path: Path) -> DFlashConfig:
    """The shape of a checkpoint, without reading its weights."""
    return parse_config(read_config(path), path)


def read_metadata(path: Path) -> dict[str, Any]:
    """What `save_dflash` was given as `extra`; empty for a checkpoint that paceline did not write."""
    metadata = read_config(path).get(METADATA, {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path} has a {type(metadata).__name__} under {METADATA!r}, but must have an object.")
    return metadata


def save_dflash(
    network: DFlashNetwork,
    path: Path,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a checkpoint folder; an existing one is replaced only once the new one is complete.

    `extra` is kept under the key "paceline" and must be JSON. Borrowed weights are not written.
    """
    weights = {
        name: _as_stored(name, weight.detach(), dtype).cpu().contiguous()
        for name, weight in network.state_dict().items()
    }
    with replacing_folder(path) as folder:
        write_checkpoint(folder, spell_config(network.config, dtype, extra or {}), weights)


def check_fits(config: DFlashConfig, hidden_size: int, vocab_size: int, num_layers: int, name: str) -> None:
    """Refuse a draft network that was made for another target than `name`, whose sizes are given.

    Raises:
        CheckpointError: its hidden size, vocabulary or number of layers is another.
    """
    pairs = {
        "hidden size": (config.target_hidden_size, hidden_size),
        "vocabulary": (config.vocab_size, vocab_size),
        "number of layers": (config.num_target_layers, num_layers),
    }
    differences = [f"{what} {ours}, not {theirs}" for what, (ours, theirs) in pairs.items() if ours != theirs]
    if differences:
        raise CheckpointError(
            f"This drafter was made for another target than {name} ({'; '.join(differences)}); "
            "use one that was trained for it."
        )


def _complete(config: DFlashConfig, weights: dict[str, Tensor], path: Path) -> DFlashConfig:
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


def _fill_in_vocabulary(weights: dict[str, Tensor], config: DFlashConfig, path: Path) -> None:
    """Check `d2t`, and derive `t2d`, which says the same and may be absent.

    Raises:
        CheckpointError: the offsets leave the target's vocabulary or collide, or `t2d` disagrees.
    """
    if config.draft_vocab_size is None or "d2t" not in weights or len(weights["d2t"]) != config.draft_vocab_size:
        return
    ids = weights["d2t"].long() + torch.arange(config.draft_vocab_size)
    inside = bool(((ids >= 0) & (ids < config.vocab_size)).all())
    if not inside or len(ids.unique()) != len(ids):
        raise CheckpointError(
            f"{path} has a d2t whose offsets do not lead to distinct tokens below {config.vocab_size}."
        )
    named = torch.zeros(config.vocab_size, dtype=torch.bool)
    named[ids] = True
    given = weights.setdefault("t2d", named)
    if given.shape == named.shape and not torch.equal(given.bool(), named):
        raise CheckpointError(f"{path} has a t2d that names other tokens than its d2t.")


def _check_names_and_shapes(weights: dict[str, Tensor], expected: dict[str, Tensor], path: Path) -> None:
    missing = sorted(set(expected) - set(weights))
    if missing:
        raise CheckpointError(f"{path} lacks the weights {few(missing)}.")
    unknown = sorted(set(weights) - set(expected))
    if unknown:
        raise CheckpointError(f"{path} has weights that a DFlash draft network does not: {few(unknown)}.")
    for name, weight in weights.items():
        came, wanted = list(weight.shape), list(expected[name].shape)
        if came != wanted:
            raise CheckpointError(f"{path} has {name} of shape {came}, but its config.json asks for {wanted}.")


def _as_stored(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """d2t and t2d keep their kind; all other weights take `dtype`."""
    kinds = {"d2t": torch.int64, "t2d": torch.bool}
    return weight.to(kinds.get(name, dtype))
