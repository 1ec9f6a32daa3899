"""The same plan every round, unless the request itself says otherwise."""

from __future__ import annotations

from paceline.policies.base import Plan, Policy, SequenceView


class FixedPolicy(Policy):
    """A fixed block size and node budget; a request's own settings win."""

    def __init__(self, block_size: int, tree_budget: int):
        self.plan = Plan(block_size, tree_budget)

    def choose(self, sequence: SequenceView) -> Plan:
        settings = sequence.settings
        if settings.block_size is None and settings.tree_budget is None:
            return self.plan
        return Plan(
            settings.block_size or self.plan.block_size,
            settings.tree_budget or self.plan.tree_budget,
        )

    def max_tree_budget(self, settings: GenerationSettings) -> int:
        return settings.tree_budget or self.plan.tree_budget

    def describe(self) -> dict[str, int | float | str]:
        return {"policy": "fixed", "block_size": self.plan.block_size, "tree_budget": self.plan.tree_budget}
