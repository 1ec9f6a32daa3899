"""Training of parallel heads (Medusa, arXiv 2401.10774): the target stays as it is (its "Medusa-1")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.checkpoints.draft_weights import check_fits
from paceline.checkpoints.heads import load_heads, save_heads
from paceline.checkpoints.target_weights import FINAL_NORM, TargetWeights
from paceline.drafters.heads import HeadsDrafter
from paceline.learning.conversation import Conversation
from paceline.learning.dflash import DFlashBatch, DFlashObjective, build_batch
from paceline.models.heads import HeadsNetwork
from paceline.models.heads_config import HeadsConfig
from paceline.models.initialise import initialise_heads
from paceline.replay import DraftingMethod
from paceline.train.data import ConversationDataset
from paceline.train.heads_config import HeadsShape, HeadsTrainConfig
from paceline.train.methods.base import TrainingMethod
from paceline.train.methods.dflash import position_weights
from paceline.train.start import choose_draft_vocabulary, initialise, require_asked
from paceline.tree import GROWTHS


class HeadsTraining(TrainingMethod):
    """All heads after sampled anchors; measured by Medusa's static tree and by the best one."""

    def __init__(self, config: HeadsTrainConfig):
        self.config: HeadsTrainConfig = config

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self.config.shape.target_layer_ids

    def build(self, target: TargetWeights, training: ConversationDataset) -> HeadsNetwork:
        earlier = self.config.start_from
        return _earlier(earlier, self.config.shape, target) if earlier else _fresh(self.config, target, training)

    def objective(self, network: HeadsNetwork, draft_ids: Tensor) -> DFlashObjective:
        weights = position_weights(self.config.loss, 1 + self.config.shape.num_heads)
        return DFlashObjective(network, draft_ids, weights, self.config.loss.soft, self.config.chunk_blocks)

    def batch(self, conversations: Sequence[Conversation], generator: Any) -> DFlashBatch:
        return build_batch(conversations, 1 + self.config.shape.num_heads, self.config.num_anchors, generator)

    def drafting(self) -> tuple[DraftingMethod, ...]:
        size, budget = 1 + self.config.shape.num_heads, self.config.tree_budget
        return tuple(
            DraftingMethod(f"{name}_{budget}", partial(HeadsDrafter, growth=GROWTHS[tree]), size, budget)
            for name, tree in (("static", "top_k"), ("tree", "best_first"))
        )

    def save(self, network: HeadsNetwork, path: Path, extra: Mapping[str, Any]) -> None:
        save_heads(network, path, extra)


def draft_config(shape: HeadsShape, target: Mapping[str, Any]) -> HeadsConfig:
    """The network's config, from the run's settings and the target's `config.json`."""
    return HeadsConfig(
        hidden_size=target["hidden_size"],
        vocab_size=target["vocab_size"],
        num_heads=shape.num_heads,
        num_layers=shape.num_layers,
        target_layer_ids=shape.target_layer_ids,
        num_target_layers=target["num_hidden_layers"],
        draft_vocab_size=shape.draft_vocab_size,
        rms_norm_eps=target.get("rms_norm_eps", 1e-6),
    )


def _fresh(config: HeadsTrainConfig, target: TargetWeights, training: ConversationDataset) -> HeadsNetwork:
    network = HeadsNetwork(draft_config(config.shape, target.config))
    initialise(network, config.seed, config.shape.num_layers)
    initialise_heads(network, target.get(FINAL_NORM))
    if config.shape.draft_vocab_size is not None:
        choose_draft_vocabulary(network, training, target)
    return network


def _earlier(folder: Path, shape: HeadsShape, target: TargetWeights) -> HeadsNetwork:
    network, of = load_heads(folder), target.config
    check_fits(network.config, of["hidden_size"], of["vocab_size"], of["num_hidden_layers"], str(target.folder))
    asked = ("num_heads", "num_layers", "target_layer_ids", "draft_vocab_size")
    require_asked(network.config, {name: getattr(shape, name) for name in asked}, folder)
    return network
