"""A tiny random SpecBlock network with a target's embedding attached."""

from __future__ import annotations

from typing import Any

import torch

from paceline.models.specblock import SpecBlockNetwork
from paceline.models.specblock_config import SpecBlockConfig
from tiny_dflash import HIDDEN, VOCABULARY, target_weights

SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "num_slots": 3,
    "target_layer_ids": (0, 2),
    "num_target_layers": 4,
    "rank_hidden_size": 16,
}


def tiny_specblock(**changes: Any) -> SpecBlockNetwork:
    torch.manual_seed(0)
    network = SpecBlockNetwork(SpecBlockConfig(**{**SIZES, **changes}))
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    network.attach(*target_weights())
    return network.eval()
