"""Draft networks written in the speculators dialect, which vLLM serves by the folder's name alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints import eagle3_config, z_lab_config
from paceline.checkpoints.draft_weights import METADATA, stored_weights
from paceline.checkpoints.eagle3 import LAYER
from paceline.checkpoints.files import write_checkpoint
from paceline.checkpoints.speculators import KIND, LAYER_CONFIG
from paceline.checkpoints.taps import inputs_of
from paceline.models.dflash import DFlashNetwork
from paceline.models.eagle3 import Eagle3Network

_VERSION = "0.5.0"
"""Of the dialect, as its readers ask for it."""
_EAGLE3_TOKENS = 3
"""Tokens a server drafts with an EAGLE-3 drafter where nobody says otherwise."""
_ARCHITECTURES = {"dflash": "DFlashDraftModel", "eagle3": "Eagle3DraftModel"}
_OF_LAYER = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "layer_types",
)


@dataclass(frozen=True)
class Verifier:
    """The target, as servers find it."""

    name: str
    architectures: Sequence[str]


def write_speculators(
    network: DFlashNetwork | Eagle3Network,
    folder: Path,
    verifier: Verifier,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write `config.json` and `model.safetensors` into an existing folder.

    A reduced vocabulary needs a head of the network's own, for servers borrow the target's whole.
    """
    assert network.config.draft_vocab_size is None or network.config.has_head, "give it a head of its own first"
    if isinstance(network, DFlashNetwork):
        plain, kind = z_lab_config.spell_config(network.config, dtype, {}), "dflash"
        own = {
            "block_size": network.config.block_size,
            "mask_token_id": network.config.mask_token_id,
            "aux_hidden_state_layer_ids": inputs_of(network.config.target_layer_ids),
        }
    else:
        plain, kind = eagle3_config.spell_config(network.config, dtype, {}), "eagle3"
        own = {
            "norm_before_residual": network.config.norm_before_residual,
            "norm_before_fc": False,
            eagle3_config.TAPS: inputs_of(network.config.target_layer_ids),
        }
    steps = network.config.block_size - 1 if isinstance(network, DFlashNetwork) else _EAGLE3_TOKENS
    config = {
        "architectures": [_ARCHITECTURES[kind]],
        KIND: kind,
        "speculators_version": _VERSION,
        "speculators_config": _proposal(kind, steps, verifier),
        LAYER_CONFIG: {name: plain[name] for name in _OF_LAYER if name in plain}
        | {"num_aux_hidden_states": len(network.config.target_layer_ids)},
        "draft_vocab_size": network.config.draft_vocab_size or network.config.vocab_size,
        "target_hidden_size": network.config.target_hidden_size,
        "num_target_layers": network.config.num_target_layers,
        "tie_word_embeddings": False,
        "dtype": plain["dtype"],
        **own,
    }
    config |= {METADATA: dict(extra)} if extra else {}
    write_checkpoint(folder, config, _renamed(stored_weights(network, dtype)))


def _proposal(kind: str, tokens: int, verifier: Verifier) -> dict[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": {"name_or_path": verifier.name, "architectures": list(verifier.architectures)},
    }


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """EAGLE-3's one layer is the first of a list here."""
    return {name.replace(LAYER, "layers.0.", 1) if name.startswith(LAYER) else name: w for name, w in weights.items()}
