"""Parallel draft heads (Medusa, arXiv 2401.10774), which know the anchor (as Hydra's, arXiv 2402.05109, do).

    features of the last position that was read --fc, norm--\
                                                             + --> head i: residual layers, norm, lm_head
    embedding of the anchor ----------------- token_proj --/       -> marginal of the i-th token after the anchor

No head sees what another one drafts, and none sees more of the text than one position's features. They take hardly any
time.

Letters: b rows, n tokens, m blocks of a row, l heads, f width of the features, h hidden; `*` any shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import silu

from paceline.models.draft_network import DraftNetwork
from paceline.models.heads_config import HeadsConfig
from paceline.models.layers import RMSNorm


class ResidualLayer(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Float[Tensor, "*b h"]) -> Float[Tensor, "*b h"]:
        return x + silu(self.linear(x))


class HeadsNetwork(DraftNetwork):
    """The draft network: `draft_hidden` serves, `training_forward` learns; they are the same function."""

    heads: Sequence[nn.Sequential]

    def __init__(self, config: HeadsConfig):
        super().__init__(config)
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * config.target_hidden_size, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.token_proj = nn.Linear(hidden, hidden, bias=False)
        self.heads = nn.ModuleList(  # type: ignore[assignment]  # typed by what it holds
            nn.Sequential(*(ResidualLayer(hidden) for _ in range(config.num_layers))) for _ in range(config.num_heads)
        )
        self.norm = RMSNorm(hidden, config.rms_norm_eps)

    def draft_hidden(
        self, features: Float[Tensor, "*b f"], anchors: Int64[Tensor, "*b"], count: int
    ) -> Float[Tensor, "*b l h"]:
        """Normed hidden states of the first `count` heads; features of the position before each anchor."""
        state = self.hidden_norm(self.fc(features.to(self.dtype))) + self.token_proj(self.embed(anchors))
        return self.norm(torch.stack([head(state) for head in self.heads[:count]], -2))

    def training_forward(
        self,
        features: Float[Tensor, "b n f"],
        tokens: Int64[Tensor, "b n"],
        anchors: Int64[Tensor, "b m"],
        block_size: int | None = None,
    ) -> Float[Tensor, "b m l h"]:
        """Hidden states of the heads at every anchor; a block of s rows is the anchor and s - 1 heads."""
        count = self.config.num_heads if block_size is None else block_size - 1
        row = torch.arange(len(anchors), device=anchors.device)[:, None]
        return self.draft_hidden(features[row, (anchors - 1).clamp(min=0)], tokens.gather(1, anchors), count)
