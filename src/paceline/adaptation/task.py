"""What each kind of drafter adds to adaptation: a network that learns beside the one that serves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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
from paceline.learning import dflash, unrolled
from paceline.learning.conversation import Conversation
from paceline.learning.eagle3 import Eagle3Objective
from paceline.learning.eagle3_loss import Eagle3LossConfig
from paceline.learning.losses import BlockLoss, decayed_weights, default_gamma
from paceline.learning.specblock import SpecBlockObjective
from paceline.learning.specblock_loss import SpecBlockLossConfig
from paceline.models.dflash import DFlashNetwork
from paceline.models.draft_network import DraftNetwork
from paceline.models.eagle3 import Eagle3Network
from paceline.models.specblock import SpecBlockNetwork
from paceline.target.base import Target

N = TypeVar("N", bound=DraftNetwork)
_TOKENIZER_FACTS = ("chat_template_sha256", "tokenizer_sha256")
_CHUNK, _SOFT = 64, 0.5


class AdaptationTask(ABC):
    """One drafter's learning network, in float32 and with a head of its own, and how it learns.

    `serving` is the drafter whose network is exchanged, `beside` one whose drafts are merged with its own; `heads` are
    how the names of the head's weights begin.
    """

    heads: tuple[str, ...] = ("lm_head.",)
    network: Any

    def __init__(self, serving: Any, checkpoint: Path, target: Target, beside: Drafter | None = None):
        self.serving, self.checkpoint, self.target, self.beside = serving, checkpoint, target, beside
        found = self.read(checkpoint, target.info.num_layers)
        self._is_half = all(map(_fits_half, found.state_dict().values()))
        self.network = _with_own_head(self.build(replace(found.config, has_head=True)), found, target)
        draft_ids = self.network.target_to_draft(torch.arange(self.network.vocab_size, device=target.info.device))
        self.objective = self.reward(self.network, draft_ids)

    @abstractmethod
    def read(self, checkpoint: Path, num_target_layers: int) -> Any:
        """The network of a checkpoint."""

    @abstractmethod
    def build(self, config: Any) -> Any:
        """A network of this shape."""

    @abstractmethod
    def reward(self, network: Any, draft_ids: Tensor) -> nn.Module:
        """What it learns: from batches to `BlockLoss`."""

    @abstractmethod
    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        """What the reward reads."""

    @abstractmethod
    def of_network(self, network: Any) -> Drafter:
        """The serving drafter with another network."""

    @abstractmethod
    def write(self, path: Path, metadata: dict[str, Any]) -> None:
        """Keep the learning network as a checkpoint of its own."""

    def loss(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Tensor:
        """Of `count` anchors of each conversation."""
        batch = self.batch(conversations, count, generator)
        found: BlockLoss = self.objective(batch.to(self.network.norm.weight.device))
        return found.loss

    def drafter(self, network: DraftNetwork) -> Drafter:
        """What drafts in service, with another network."""
        learned = self.of_network(network)
        return learned if self.beside is None else MixtureDrafter(learned, self.beside)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write the learning network, with what the original said of itself and what is said here of its learning."""
        original = {"name": self.checkpoint.name, **read_metadata(self.checkpoint)}
        kept: dict[str, Any] = {key: original[key] for key in _TOKENIZER_FACTS if key in original}
        self.write(path, {**kept, "adapted_from": original, "adaptation": about})

    def serving_copy(self, state: Mapping[str, Tensor] | None = None) -> DraftNetwork:
        """A network with the learning one's weights, or with others, ready for the target's device; where the
        original's were bfloat16, which the kernels read in half the time, these are rounded to it."""
        state = self.network.state_dict() if state is None else state
        if self._is_half:
            state = {name: w.bfloat16().to(w.dtype) if w.is_floating_point() else w for name, w in state.items()}
        copy: DraftNetwork = self.build(self.network.config)
        copy.load_state_dict(state)
        make_ready(copy.eval(), self.network.config, self.target)
        return copy


class SpecBlockTask(AdaptationTask):
    """SpecBlock: blocks unrolled as in training."""

    heads = ("lm_head.", "rank_head.")

    def read(self, checkpoint: Path, num_target_layers: int) -> SpecBlockNetwork:
        return load_specblock(checkpoint, num_target_layers)

    def build(self, config: Any) -> SpecBlockNetwork:
        return SpecBlockNetwork(config)

    def reward(self, network: SpecBlockNetwork, draft_ids: Tensor) -> nn.Module:
        return SpecBlockObjective(network, draft_ids, SpecBlockLossConfig(soft=_SOFT), _CHUNK)

    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        slots, blocks = self.network.num_slots, self.serving.num_blocks
        return unrolled.build_batch(conversations, slots, blocks, count, generator)

    def of_network(self, network: SpecBlockNetwork) -> SpecBlockDrafter:
        return SpecBlockDrafter(network, self.serving.tree, self.serving.default_tree_budget)

    def write(self, path: Path, metadata: dict[str, Any]) -> None:
        save_specblock(self.network, path, metadata)


class Eagle3Task(AdaptationTask):
    """EAGLE-3: steps on its own states as in training."""

    def read(self, checkpoint: Path, num_target_layers: int) -> Eagle3Network:
        return load_eagle3(checkpoint, num_target_layers)

    def build(self, config: Any) -> Eagle3Network:
        return Eagle3Network(config)

    def reward(self, network: Eagle3Network, draft_ids: Tensor) -> nn.Module:
        return Eagle3Objective(network, draft_ids, Eagle3LossConfig(soft=_SOFT), _CHUNK)

    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        return unrolled.build_batch(conversations, 1, Eagle3LossConfig.steps, count, generator)

    def of_network(self, network: Eagle3Network) -> Eagle3Drafter:
        return Eagle3Drafter(network, self.serving.tree, self.serving.default_tree_budget)

    def write(self, path: Path, metadata: dict[str, Any]) -> None:
        save_eagle3(self.network, path, metadata)


class DFlashTask(AdaptationTask):
    """DFlash: blocks of masks after sampled anchors, as in training."""

    def read(self, checkpoint: Path, num_target_layers: int) -> DFlashNetwork:
        return load_dflash(checkpoint, num_target_layers=num_target_layers)

    def build(self, config: Any) -> DFlashNetwork:
        return DFlashNetwork(config)

    def reward(self, network: DFlashNetwork, draft_ids: Tensor) -> nn.Module:
        weights = decayed_weights(default_gamma(network.config.block_size))
        return dflash.DFlashObjective(network, draft_ids, weights, _SOFT, _CHUNK)

    def batch(self, conversations: Sequence[Conversation], count: int, generator: torch.Generator) -> Any:
        return dflash.build_batch(conversations, self.network.config.block_size, count, generator)

    def of_network(self, network: DFlashNetwork) -> DFlashDrafter:
        return DFlashDrafter(network, self.serving.growth, self.serving.default_tree_budget, self.serving.shared_noise)

    def write(self, path: Path, metadata: dict[str, Any]) -> None:
        save_dflash(self.network, path, metadata)


def _with_own_head(fresh: N, found: DraftNetwork, target: Target) -> N:
    """`fresh`, of a shape with a head, filled with what was found and, where that borrowed it, the target's head."""
    missing = fresh.load_state_dict(found.state_dict(), strict=False).missing_keys
    fresh.attach(target.embedding.float(), target.head.float())
    if "lm_head.weight" in missing:
        with torch.no_grad():
            fresh.lm_head.weight.copy_(target.head.float()[fresh.draft_vocabulary().to(target.head.device)])
    return fresh.to(target.info.device).float().train()


def _fits_half(weight: Tensor) -> bool:
    return not weight.is_floating_point() or torch.equal(weight.bfloat16().to(weight.dtype), weight)
