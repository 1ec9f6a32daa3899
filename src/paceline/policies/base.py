"""What the loop asks of a policy.

Letters: v vocabulary, f width of the features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from paceline.types import GenerationSettings, Statistics


@dataclass(frozen=True)
class PromptView:
    """What a policy may know of a prompt that was just read: the target's raw logits after its last token, and the
    features of that token where the drafter has any."""

    settings: GenerationSettings
    logits: Float[Tensor, " v"]
    features: Float[Tensor, " f"] | None


@dataclass(frozen=True)
class SequenceView:
    """What a policy may know of a sequence: its settings, its counts so far, and what `begin` returned for it."""

    settings: GenerationSettings
    statistics: Statistics
    state: Any = None


@dataclass(frozen=True)
class Plan:
    """How much to draft in one round: the drafter's block size (anchor included) and the number of nodes."""

    block_size: int
    tree_budget: int


class Policy(ABC):
    """Decides how much to draft."""

    def begin(self, prompt: PromptView) -> Any:
        """What to remember of a sequence, once its prompt is read; the loop holds it."""
        return None

    @abstractmethod
    def choose(self, sequence: SequenceView) -> Plan:
        """The plan for the next round of this sequence."""

    @abstractmethod
    def max_tree_budget(self, settings: GenerationSettings) -> int:
        """The most nodes this policy may ever plan for such a request; room for them is kept."""

    @abstractmethod
    def describe(self) -> dict[str, int | float | str]:
        """The settings to print beside this policy's numbers."""
