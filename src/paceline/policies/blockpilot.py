"""BlockPilot (arXiv 2606.31315): one prediction after the prefill decides the block size of the whole request."""

from __future__ import annotations

from paceline.models.policy_head import PolicyHead
from paceline.policies.base import Plan, Policy, PromptView, SequenceView
from paceline.types import GenerationSettings


class BlockPilotPolicy(Policy):
    """The block size that the network predicts, to the end, and the same node budget whatever it predicts.

    A request's own sizes win.
    """

    def __init__(self, head: PolicyHead, tree_budget: int):
        self.head = head
        self.needs_hidden = head.config.inputs == "last_hidden"
        self.tree_budget = tree_budget

    def begin(self, prompt: PromptView) -> int:
        if prompt.settings.block_size is not None:
            return prompt.settings.block_size
        return self.head.choose(prompt.logits, prompt.features, prompt.hidden)

    def choose(self, sequence: SequenceView) -> Plan:
        return Plan(int(sequence.state), self.max_tree_budget(sequence.settings))

    def max_tree_budget(self, settings: GenerationSettings) -> int:
        return settings.tree_budget or self.tree_budget

    def describe(self) -> dict[str, int | float | str]:
        sizes = ", ".join(map(str, self.head.config.block_sizes))
        return {"policy": "blockpilot", "block_sizes": sizes, "tree_budget": self.tree_budget}
