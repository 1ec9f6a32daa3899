"""What each kind of drafter adds to adaptation: a network that learns beside the one that serves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from paceline.attach import make_ready
from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.eagle3 import load_eagle3, save_eagle3
from paceline.checkpoints.specblock import load_specblock, save_specblock
from paceline.checkpoints.z_lab import load_dflash, save_dflash
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.eagle3 import Eagle3Drafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.specblock import SpecBlockDrafter
from paceline.learning import dflash, eagle3, specblock, unrolled
from paceline.learning.conversation import Conversation
from paceline.learning.eagle3_loss import Eagle3LossConfig
from paceline.learning.losses import BlockLoss, decayed_weights, default_gamma
from paceline.learning.specblock_loss import SpecBlockLossConfig
from paceline.models.dflash import DFlashNetwork
from paceline.models.draft_network import DraftNetwork
from paceline.models.eagle3 import Eagle3Network
from paceline.models.specblock import SpecBlockNetwork
from paceline.target.base import Target

N = TypeVar("N", bound=DraftNetwork)
_CHUNK, _SOFT = 64, 0.5


class AdaptationTask(ABC):
    """One drafter's learning network, in float32 and with a head of its own, and how it learns.

    `serving` is the drafter whose network is exchanged, `beside` one whose drafts are merged with its own; `heads` are
    how the names of the head's weights begin.
    """

    network: DraftNetwork
    objective: nn.Module
    heads: tuple[str, ...]

    def __init__(self, serving: Any, checkpoint: Path, target: Target, beside: Drafter | None = None):
        self.serving, self.checkpoint, self.target, self.beside = serving, checkpoint, target, beside

    def loss(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Tensor:
        """Of `count` anchors of each conversation."""
        batch: Any = self.batch(conversations, count, generator)
        found: BlockLoss = self.objective(batch.to(self.network.norm.weight.device))
        return found.loss

    @abstractmethod
    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        """What the objective reads."""

    def drafter(self, network: DraftNetwork) -> Drafter:
        """What drafts in service, with another network."""
        learned = self.of_network(network)
        return learned if self.beside is None else MixtureDrafter(learned, self.beside)

    @abstractmethod
    def of_network(self, network: Any) -> Drafter:
        """The serving drafter with another network."""

    @abstractmethod
    def empty(self) -> DraftNetwork:
        """A network of the learning one's shape."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the learning network as a checkpoint of its own."""

    def metadata(self) -> dict[str, Any]:
        """What is kept in an adapted checkpoint: what the original said of itself, and that it was adapted."""
        return read_metadata(self.checkpoint) | {"adapted_from": self.checkpoint.name}

    def serving_copy(self) -> DraftNetwork:
        """The learning network's weights, ready for the target's device."""
        copy = self.empty()
        copy.load_state_dict(self.network.state_dict())
        make_ready(copy.eval(), self.network.config, self.target)  # type: ignore[arg-type]  # every network has one
        return copy


class SpecBlockTask(AdaptationTask):
    """SpecBlock: blocks unrolled as in training."""

    heads = ("lm_head.", "rank_head.")
    network: SpecBlockNetwork

    def __init__(self, serving: SpecBlockDrafter, checkpoint: Path, target: Target, beside: Drafter | None = None):
        super().__init__(serving, checkpoint, target, beside)
        found = load_specblock(checkpoint, target.info.num_layers)
        self.network = _with_own_head(SpecBlockNetwork(replace(found.config, has_head=True)), found, target)
        self.objective = specblock.SpecBlockObjective(
            self.network, _draft_ids(self.network), SpecBlockLossConfig(soft=_SOFT), _CHUNK
        )

    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        slots, blocks = self.network.config.num_slots, self.serving.tree.num_blocks
        return unrolled.build_batch(conversations, slots, blocks, count, generator)

    def of_network(self, network: SpecBlockNetwork) -> SpecBlockDrafter:
        return SpecBlockDrafter(network, self.serving.tree, self.serving.default_tree_budget)

    def empty(self) -> SpecBlockNetwork:
        return SpecBlockNetwork(self.network.config)

    def save(self, path: Path) -> None:
        save_specblock(self.network, path, self.metadata())


class Eagle3Task(AdaptationTask):
    """EAGLE-3: steps on its own states as in training."""

    heads = ("lm_head.",)
    network: Eagle3Network

    def __init__(self, serving: Eagle3Drafter, checkpoint: Path, target: Target, beside: Drafter | None = None):
        super().__init__(serving, checkpoint, target, beside)
        found = load_eagle3(checkpoint, target.info.num_layers)
        self.network = _with_own_head(Eagle3Network(replace(found.config, has_head=True)), found, target)
        self.objective = eagle3.Eagle3Objective(
            self.network, _draft_ids(self.network), Eagle3LossConfig(soft=_SOFT), _CHUNK
        )

    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        return unrolled.build_batch(conversations, 1, Eagle3LossConfig.steps, count, generator)

    def of_network(self, network: Eagle3Network) -> Eagle3Drafter:
        return Eagle3Drafter(network, self.serving.tree, self.serving.default_tree_budget)

    def empty(self) -> Eagle3Network:
        return Eagle3Network(self.network.config)

    def save(self, path: Path) -> None:
        save_eagle3(self.network, path, self.metadata())


class DFlashTask(AdaptationTask):
    """DFlash: blocks of masks after sampled anchors, as in training."""

    heads = ("lm_head.",)
    network: DFlashNetwork

    def __init__(self, serving: DFlashDrafter, checkpoint: Path, target: Target, beside: Drafter | None = None):
        super().__init__(serving, checkpoint, target, beside)
        found = load_dflash(checkpoint)
        self.network = _with_own_head(DFlashNetwork(replace(found.config, has_head=True)), found, target)
        weights = decayed_weights(default_gamma(found.config.block_size))
        self.objective = dflash.DFlashObjective(self.network, _draft_ids(self.network), weights, _SOFT, _CHUNK)

    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        return dflash.build_batch(conversations, self.network.config.block_size, count, generator)

    def of_network(self, network: DFlashNetwork) -> DFlashDrafter:
        return DFlashDrafter(network, self.serving.growth, self.serving.default_tree_budget, self.serving.shared_noise)

    def empty(self) -> DFlashNetwork:
        return DFlashNetwork(self.network.config)

    def save(self, path: Path) -> None:
        save_dflash(self.network, path, self.metadata())


def _with_own_head(fresh: N, found: DraftNetwork, target: Target) -> N:
    """`fresh`, of a shape with a head, filled with what was found and, where that borrowed it, the target's head."""
    missing = fresh.load_state_dict(found.state_dict(), strict=False).missing_keys
    fresh.attach(target.embedding.float(), target.head.float())
    if "lm_head.weight" in missing:
        with torch.no_grad():
            fresh.lm_head.weight.copy_(target.head.float()[fresh.draft_vocabulary().to(target.head.device)])
    return fresh.to(target.info.device).float().train()


def _draft_ids(network: DraftNetwork) -> Tensor:
    return network.target_to_draft(torch.arange(network.vocab_size, device=network.norm.weight.device))
