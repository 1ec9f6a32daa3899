"""A tiny random EAGLE-3 network with a target's embedding attached."""

from __future__ import annotations

from typing import Any

import torch

from paceline.models.eagle3 import Eagle3Network
from paceline.models.eagle3_config import Eagle3Config
from tiny_dflash import HIDDEN, VOCABULARY, target_weights

SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "target_layer_ids": (0, 2),
    "num_target_layers": 4,
}


def tiny_eagle3(**changes: Any) -> Eagle3Network:
    torch.manual_seed(0)
    network = Eagle3Network(Eagle3Config(**{**SIZES, **changes}))
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    network.attach(*target_weights())
    return network.eval()
