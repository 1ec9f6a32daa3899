"""BlockPilot (arXiv 2606.31315): one prediction after the prefill decides the block size of the whole request."""

from __future__ import annotations

from paceline.models.policy_head import PolicyHead
from paceline.policies.base import Plan, Policy, PromptView, SequenceView
from paceline.types import GenerationSettings


class BlockPilotPolicy(Policy):
    """The block size that the network predicts, to the end; a request's own sizes win.

    The node budget does not follow the prediction, but has room for a whole chain of the block.
    """

    def __init__(self, head: PolicyHead, tree_budget: int):
        self.head = head
        self.tree_budget = tree_budget

    def begin(self, prompt: PromptView) -> int:
        if prompt.settings.block_size is not None:
            return prompt.settings.block_size
        return self.head.choose(prompt.logits, prompt.features)

    def choose(self, sequence: SequenceView) -> Plan:
        block_size = int(sequence.state)
        return Plan(block_size, sequence.settings.tree_budget or max(self.tree_budget, block_size - 1))

    def max_tree_budget(self, settings: GenerationSettings) -> int:
        largest = settings.block_size or self.head.config.block_sizes[-1]
        return settings.tree_budget or max(self.tree_budget, largest - 1)

    def describe(self) -> dict[str, int | float | str]:
        sizes = ", ".join(map(str, self.head.config.block_sizes))
        return {"policy": "blockpilot", "block_sizes": sizes, "tree_budget": self.tree_budget}
