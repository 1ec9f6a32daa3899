"""Training of DFlash drafters (arXiv 2602.06036)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoints.target_weights import FINAL_NORM, TargetWeights
from paceline.checkpoints.z_lab import load_dflash, save_dflash
from paceline.drafters.dflash import DFlashDrafter
from paceline.learning.conversation import Conversation
from paceline.learning.dflash import DFlashBatch, DFlashObjective, build_batch
from paceline.learning.losses import PositionWeights, d_pace_weights, decayed_weights, default_gamma
from paceline.models.dflash import DFlashNetwork
from paceline.models.dflash_config import DFlashConfig
from paceline.models.initialise import initialise_from_target
from paceline.replay import DraftingMethod
from paceline.train.config import DrafterShape, LossConfig, TrainConfig
from paceline.train.data import ConversationDataset
from paceline.train.methods.base import TrainingMethod
from paceline.train.start import check_earlier, choose_draft_vocabulary, initialise, layer_states, target_sizes
from paceline.tree import GROWTHS


class DFlashTraining(TrainingMethod):
    """Blocks of masks after sampled anchors; measured as a chain and as a best-first tree."""

    def __init__(self, config: TrainConfig):
        self.config: TrainConfig = config

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.shape.target_layer_ids

    def build(self, target: TargetWeights, training: ConversationDataset) -> DFlashNetwork:
        earlier = self.config.start_from
        return _earlier(earlier, self.config.shape, target) if earlier else _fresh(self.config, target, training)

    def objective(self, network: DFlashNetwork, draft_ids: Tensor) -> DFlashObjective:
        weights = position_weights(self.config.loss, self.config.shape.block_size)
        return DFlashObjective(network, draft_ids, weights, self.config.loss.soft, self.config.chunk_blocks)

    def batch(self, conversations: Sequence[Conversation], generator: torch.Generator) -> DFlashBatch:
        return build_batch(conversations, self.config.shape.block_size, self.config.num_anchors, generator)

    def drafting(self) -> tuple[DraftingMethod, ...]:
        size, budget = self.config.shape.block_size, self.config.tree_budget
        chain, tree = (partial(DFlashDrafter, growth=GROWTHS[name]) for name in ("chain", "best_first"))
        return DraftingMethod("chain", chain, size, size - 1), DraftingMethod(f"tree_{budget}", tree, size, budget)

    def save(self, network: DFlashNetwork, path: Path, extra: Mapping[str, Any]) -> None:
        save_dflash(network, path, extra)


def position_weights(config: LossConfig, block_size: int) -> PositionWeights:
    """The weighting that the settings name."""
    if config.weights == "d_pace":
        return d_pace_weights(config.smoothing)
    return decayed_weights(config.gamma or default_gamma(block_size))


def draft_config(shape: DrafterShape, target: dict[str, Any], mask_token_id: int, folder: Path) -> DFlashConfig:
    """The network's config, from the run's settings and the target's `config.json` (`folder` is for errors)."""
    return DFlashConfig(
        **target_sizes(target, folder, shape.num_attention_heads, shape.num_key_value_heads, shape.intermediate_size),
        num_hidden_layers=shape.num_layers,
        block_size=shape.block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=shape.target_layer_ids,
        draft_vocab_size=shape.draft_vocab_size,
    )


def _fresh(config: TrainConfig, target: TargetWeights, training: ConversationDataset) -> DFlashNetwork:
    vocab_size = target.config["vocab_size"]
    mask = config.shape.mask_token_id
    mask = _unused_token(training, vocab_size) if mask is None else mask
    settings = draft_config(config.shape, target.config, mask, target.folder)
    network = DFlashNetwork(settings)
    initialise(network, config.seed, config.shape.num_layers)
    if config.shape.init_layers:
        states = layer_states(target, config.shape.init_layers)
        initialise_from_target(network, states, target.get(FINAL_NORM))
    if settings.draft_vocab_size is not None:
        choose_draft_vocabulary(network, training, target)
    return network


def _earlier(folder: Path, shape: DrafterShape, target: TargetWeights) -> DFlashNetwork:
    network = load_dflash(folder, num_target_layers=target.config["num_hidden_layers"])
    check_earlier(
        network.config,
        shape,
        target,
        folder,
        num_hidden_layers=shape.num_layers,
        block_size=shape.block_size,
        mask_token_id=shape.mask_token_id,
    )
    return network


def _unused_token(dataset: ConversationDataset, vocab_size: int) -> int:
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for shard in dataset.shards:
        counts += torch.bincount(shard.tensors["tokens"].long(), minlength=vocab_size)
    return int(torch.nonzero(counts == counts.min())[0])
