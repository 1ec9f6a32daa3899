"""What the loop asks of a policy.

Letters: v vocabulary, f width of the features, h hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from paceline.tree import DraftTree
from paceline.types import GenerationSettings, Statistics


@dataclass(frozen=True)
class PromptView:
    """What a policy may know of a prompt that was just read: the target's raw logits after its last token, the features
    of that token where the drafter has any, and the last layer's output there where the policy asked for it."""

    settings: GenerationSettings
    logits: Float[Tensor, " v"]
    features: Float[Tensor, " f"] | None
    hidden: Float[Tensor, " h"] | None = None


@dataclass(frozen=True)
class SequenceView:
    """What a policy may know of a sequence: its settings, its counts so far, and what `begin` returned for it."""

    settings: GenerationSettings
    statistics: Statistics
    state: Any = None


@dataclass(frozen=True)
class Plan:
    """How much to draft in one round: the drafter's block size (anchor included) and the number of nodes.

    A block of one, the anchor alone, asks for what costs no pass of a draft network, such as prompt lookup.
    """

    block_size: int
    tree_budget: int


@dataclass(frozen=True)
class DraftView:
    """What a policy may know of one sequence's draft before it is verified."""

    sequence: SequenceView
    num_tokens: int
    plan: Plan
    tree: DraftTree
    is_extended: bool = False
    """Whether it goes on past the end of its block."""


@dataclass(frozen=True)
class RoundView:
    """What a round did: every draft as it was verified, its accepted path, and the seconds that the stages took."""

    drafts: Sequence[DraftView]
    paths: Sequence[Sequence[int]]
    draft_s: float
    verify_s: float
    other_s: float


class Policy(ABC):
    """Decides how much to draft.

    A policy that follows the machine or the drafter learns from every round; what it knows of one sequence is the
    state that `begin` returns and the loop holds. `needs_times` says that it learns from the stages' seconds, which
    then have to be those of the device; `needs_hidden` that `begin` reads the last layer's output; `may_extend` that it
    asks at times for trees that go on past the end of their blocks.
    """

    needs_times: bool = False
    needs_hidden: bool = False
    may_extend: bool = False

    def begin(self, prompt: PromptView) -> Any:
        """What to remember of a sequence, once its prompt is read; the loop holds it."""
        return None

    @abstractmethod
    def choose(self, sequence: SequenceView) -> Plan:
        """The plan for the next round of this sequence."""

    def extends(self, drafts: Sequence[DraftView]) -> list[bool]:
        """Which trees should go on past the end of their blocks, at the price of another pass of the draft network."""
        return [False] * len(drafts)

    def limit(self, drafts: Sequence[DraftView]) -> list[int]:
        """How many nodes of each tree to verify, of its first ones; those of one batch share the pass."""
        return [draft.tree.num_nodes for draft in drafts]

    def learn(self, outcome: RoundView) -> None:  # noqa: B027  most policies need not look
        """See what a round did."""

    @abstractmethod
    def max_tree_budget(self, settings: GenerationSettings) -> int:
        """The most nodes this policy may ever plan for such a request; room for them is kept."""

    @abstractmethod
    def describe(self) -> dict[str, int | float | str]:
        """The settings to print beside this policy's numbers."""
