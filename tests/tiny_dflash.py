"""A tiny random DFlash network with a target's embedding and head attached."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.models.dflash import DFlashNetwork
from paceline.models.dflash_config import DFlashConfig

VOCABULARY, HIDDEN = 50, 32
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "block_size": 4,
    "mask_token_id": 5,
    "target_layer_ids": (0, 2),
    "num_target_layers": 4,
}


def tiny_network(**changes: Any) -> DFlashNetwork:
    torch.manual_seed(0)
    network = DFlashNetwork(DFlashConfig(**{**SIZES, **changes}))
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    return network.eval()


def target_weights() -> tuple[Tensor, Tensor]:
    """Embedding and head of a target."""
    generator = torch.Generator().manual_seed(1)
    embedding, head = torch.randn(2, VOCABULARY, HIDDEN, generator=generator)
    return embedding, head
