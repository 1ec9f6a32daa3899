"""A tiny random network of parallel heads with a target's embedding and head attached."""

from __future__ import annotations

from typing import Any

import torch

from paceline.models.heads import HeadsNetwork
from paceline.models.heads_config import HeadsConfig
from tiny_dflash import HIDDEN, VOCABULARY, target_weights

SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "num_heads": 4,
    "target_layer_ids": (0, 2),
    "num_target_layers": 4,
}


def tiny_heads(**changes: Any) -> HeadsNetwork:
    torch.manual_seed(0)
    network = HeadsNetwork(HeadsConfig(**{**SIZES, **changes}))
    network.attach(*target_weights())
    return network.eval()
