"""What the loop asks of a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from paceline.types import GenerationSettings, Statistics


@dataclass(frozen=True)
class SequenceView:
    """What a policy may know of a sequence: its settings and its counts so far."""

    settings: GenerationSettings
    statistics: Statistics


@dataclass(frozen=True)
class Plan:
    """How much to draft in one round: the drafter's block size (anchor included) and the number of nodes."""

    block_size: int
    tree_budget: int


class Policy(ABC):
    """Decides how much to draft."""

    @abstractmethod
    def choose(self, sequence: SequenceView) -> Plan:
        """The plan for the next round of this sequence."""

    @abstractmethod
    def max_tree_budget(self, settings: GenerationSettings) -> int:
        """The most nodes this policy may ever plan for such a request; room for them is kept."""

    @abstractmethod
    def describe(self) -> dict[str, int | float | str]:
        """The settings to print beside this policy's numbers."""
