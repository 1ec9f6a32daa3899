"""What a training run asks of a drafter's method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from paceline.checkpoints.target_weights import TargetWeights
from paceline.learning.conversation import Conversation
from paceline.models.draft_network import DraftNetwork
from paceline.replay import DraftingMethod
from paceline.train.config import RunConfig
from paceline.train.data import ConversationDataset


@runtime_checkable
class TrainingBatch(Protocol):
    """What one step trains on; the objective knows the rest of it."""

    @property
    def anchors(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    def to(self, device: torch.device) -> Any: ...


class TrainingMethod(ABC):
    """A drafter's part of a training run."""

    config: RunConfig

    @property
    @abstractmethod
    def target_layer_ids(self) -> tuple[int, ...]:
        """The target's layers whose outputs the network reads."""

    @abstractmethod
    def build(self, target: TargetWeights, training: ConversationDataset) -> DraftNetwork:
        """The network that the run starts with, the target's weights not yet attached."""

    @abstractmethod
    def objective(self, network: Any, draft_ids: Tensor) -> nn.Module:
        """A module that turns batches into `BlockLoss`; `draft_ids` Int64[V] is the draft id of every target id, or -1.

        It is what `accelerate` wraps."""

    @abstractmethod
    def batch(self, conversations: Sequence[Conversation], generator: torch.Generator) -> TrainingBatch:
        """What a step trains on."""

    @abstractmethod
    def drafting(self) -> tuple[DraftingMethod, ...]:
        """The ways to draft that are measured on held-out conversations; the last one decides which drafter is best."""

    @abstractmethod
    def save(self, network: Any, path: Path, extra: Mapping[str, Any]) -> None:
        """Write a checkpoint folder."""
