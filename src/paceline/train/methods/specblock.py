"""Training of SpecBlock drafters (arXiv 2605.07243)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.specblock import load_specblock, save_specblock
from paceline.checkpoints.target_weights import FINAL_NORM, TargetWeights
from paceline.drafters.specblock import STATIC_WIDTH, SpecBlockDrafter, SpecBlockTreeConfig
from paceline.learning.conversation import Conversation
from paceline.learning.specblock import SpecBlockObjective
from paceline.learning.unrolled import UnrolledBatch, build_batch
from paceline.models.initialise import initialise_specblock
from paceline.models.specblock import SpecBlockNetwork
from paceline.models.specblock_config import SpecBlockConfig
from paceline.replay import DraftingMethod
from paceline.train.data import ConversationDataset
from paceline.train.methods.base import TrainingMethod
from paceline.train.specblock_config import SpecBlockShape, SpecBlockTrainConfig
from paceline.train.start import check_earlier, fill_in, initialise, layer_states, target_sizes


class SpecBlockTraining(TrainingMethod):
    """Unrolled blocks; measured by a static tree and by the dynamic one."""

    def __init__(self, config: SpecBlockTrainConfig):
        self.config: SpecBlockTrainConfig = config

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.shape.target_layer_ids

    def build(self, target: TargetWeights, training: ConversationDataset) -> SpecBlockNetwork:
        earlier = self.config.start_from
        return _earlier(earlier, self.config.shape, target) if earlier else _fresh(self.config, target, training)

    def objective(self, network: SpecBlockNetwork, draft_ids: Tensor) -> SpecBlockObjective:
        return SpecBlockObjective(network, draft_ids, self.config.loss, self.config.chunk_blocks)

    def batch(self, conversations: Sequence[Conversation], generator: torch.Generator) -> UnrolledBatch:
        shape = self.config.shape
        return build_batch(conversations, shape.num_slots, shape.num_blocks, self.config.num_anchors, generator)

    def drafting(self) -> tuple[DraftingMethod, ...]:
        shape, budget = self.config.shape, self.config.tree_budget
        size = 1 + shape.num_slots * shape.num_blocks
        static = partial(SpecBlockDrafter, tree=SpecBlockTreeConfig(shape.num_blocks, width=STATIC_WIDTH))
        found = DraftingMethod(f"static_{budget}", static, size, budget)
        if not self.config.loss.rank:
            return (found,)
        dynamic = partial(SpecBlockDrafter, tree=SpecBlockTreeConfig(shape.num_blocks))
        return found, DraftingMethod(f"tree_{budget}", dynamic, size, budget)

    def save(self, network: SpecBlockNetwork, path: Path, extra: Mapping[str, Any]) -> None:
        save_specblock(network, path, extra)


def draft_config(shape: SpecBlockShape, target: dict[str, Any], folder: Path) -> SpecBlockConfig:
    """The network's config, from the run's settings and the target's `config.json` (`folder` is for errors)."""
    return SpecBlockConfig(
        **target_sizes(target, folder, shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size),
        num_hidden_layers=shape.num_layers,
        num_slots=shape.num_slots,
        target_layer_ids=shape.target_layer_ids,
        draft_vocab_size=shape.draft_vocab_size,
        shifts=shape.shifts,
        inherits=shape.inherits,
        has_head=shape.own_head,
    )


def _fresh(config: SpecBlockTrainConfig, target: TargetWeights, training: ConversationDataset) -> SpecBlockNetwork:
    network = SpecBlockNetwork(draft_config(config.shape, target.config, target.folder))
    initialise(network, config.seed, config.shape.num_layers)
    if config.shape.init_layers:
        initialise_specblock(network, layer_states(target, config.shape.init_layers), target.get(FINAL_NORM))
    fill_in(network, config.shape, config.shape.own_head, training, target)
    return network


def _earlier(folder: Path, shape: SpecBlockShape, target: TargetWeights) -> SpecBlockNetwork:
    network = load_specblock(folder, target.config["num_hidden_layers"])
    check_earlier(
        network.config,
        shape,
        target,
        folder,
        num_hidden_layers=shape.num_layers,
        num_slots=shape.num_slots,
        has_head=shape.own_head,
        shifts=shape.shifts,
        inherits=shape.inherits,
    )
    return network
