"""Training of EAGLE-3 drafters (arXiv 2503.01840)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.eagle3 import load_eagle3, save_eagle3
from paceline.checkpoints.target_weights import FINAL_NORM, TargetWeights
from paceline.drafters.eagle3 import EAGLE3_TREES, Eagle3Drafter
from paceline.learning.conversation import Conversation
from paceline.learning.eagle3 import Eagle3Objective
from paceline.learning.unrolled import UnrolledBatch, build_batch
from paceline.models.eagle3 import Eagle3Network
from paceline.models.eagle3_config import Eagle3Config
from paceline.models.initialise import initialise_eagle3
from paceline.replay import DraftingMethod
from paceline.train.data import ConversationDataset
from paceline.train.eagle3_config import Eagle3Shape, Eagle3TrainConfig
from paceline.train.methods.base import TrainingMethod
from paceline.train.start import check_earlier, fill_in, initialise, layer_states, target_sizes


class Eagle3Training(TrainingMethod):
    """Steps on its own states; measured by a static tree and by the dynamic one."""

    def __init__(self, config: Eagle3TrainConfig):
        self.config: Eagle3TrainConfig = config

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.shape.target_layer_ids

    def build(self, target: TargetWeights, training: ConversationDataset) -> Eagle3Network:
        earlier = self.config.start_from
        return _earlier(earlier, self.config.shape, target) if earlier else _fresh(self.config, target, training)

    def objective(self, network: Eagle3Network, draft_ids: Tensor) -> Eagle3Objective:
        return Eagle3Objective(network, draft_ids, self.config.loss, self.config.chunk_blocks)

    def batch(self, conversations: Sequence[Conversation], generator: torch.Generator) -> UnrolledBatch:
        return build_batch(conversations, 1, self.config.loss.steps, self.config.num_anchors, generator)

    def drafting(self) -> tuple[DraftingMethod, ...]:
        budget, size = self.config.tree_budget, 1 + self.config.loss.steps
        return tuple(
            DraftingMethod(f"{name}_{budget}", partial(Eagle3Drafter, tree=EAGLE3_TREES[tree]), size, budget)
            for name, tree in (("static", "top_k"), ("tree", "best_first"))
        )

    def save(self, network: Eagle3Network, path: Path, extra: Mapping[str, Any]) -> None:
        save_eagle3(network, path, extra)


def draft_config(shape: Eagle3Shape, target: dict[str, Any], folder: Path) -> Eagle3Config:
    """The network's config, from the run's settings and the target's `config.json` (`folder` is for errors)."""
    return Eagle3Config(
        **target_sizes(target, folder, shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size),
        target_layer_ids=shape.target_layer_ids,
        draft_vocab_size=shape.draft_vocab_size,
        norm_before_residual=shape.norm_before_residual,
        has_head=shape.own_head,
    )


def _fresh(config: Eagle3TrainConfig, target: TargetWeights, training: ConversationDataset) -> Eagle3Network:
    network = Eagle3Network(draft_config(config.shape, target.config, target.folder))
    initialise(network, config.seed, config.shape.num_layers)
    if config.shape.init_layers:
        initialise_eagle3(network, layer_states(target, config.shape.init_layers)[0], target.get(FINAL_NORM))
    fill_in(network, config.shape, config.shape.own_head, training, target)
    return network


def _earlier(folder: Path, shape: Eagle3Shape, target: TargetWeights) -> Eagle3Network:
    network = load_eagle3(folder, target.config["num_hidden_layers"])
    check_earlier(
        network.config,
        shape,
        target,
        folder,
        norm_before_residual=shape.norm_before_residual,
        has_head=shape.own_head,
    )
    return network
