"""Another policy's decisions, with something of every round kept: the base of policies that only look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.policies.base import DraftView, Plan, Policy, PromptView, RoundView, SequenceView
from paceline.types import GenerationSettings


class ObservedPolicy(Policy):
    """Passes everything on to `inner`."""

    def __init__(self, inner: Policy):
        self.inner = inner
        self.needs_times, self.needs_hidden = inner.needs_times, inner.needs_hidden
        self.may_extend = inner.may_extend

    def begin(self, prompt: PromptView) -> Any:
        return self.inner.begin(prompt)

    def choose(self, sequence: SequenceView) -> Plan:
        return self.inner.choose(sequence)

    def extends(self, drafts: Sequence[DraftView]) -> list[bool]:
        return self.inner.extends(drafts)

    def limit(self, drafts: Sequence[DraftView]) -> list[int]:
        return self.inner.limit(drafts)

    def learn(self, outcome: RoundView) -> None:
        self.inner.learn(outcome)

    def max_tree_budget(self, settings: GenerationSettings) -> int:
        return self.inner.max_tree_budget(settings)

    def describe(self) -> dict[str, int | float | str]:
        return self.inner.describe()
