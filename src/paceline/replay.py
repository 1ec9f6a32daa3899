"""Acceptance length on held-out conversations: the real decoding loop, with the target replayed from disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.decode import Parts
from paceline.drafters.base import Drafter
from paceline.engine import Engine
from paceline.learning.conversation import Conversation
from paceline.learning.recorded_target import RecordedTarget
from paceline.metrics import acceptance_length
from paceline.models.draft_network import DraftNetwork
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings


class HeldOutAcceptance(Protocol):
    """Whatever measures a drafter during training."""

    def __call__(self, network: DraftNetwork) -> Mapping[str, float]:
        """Acceptance length (tokens per round, bonus included) by the name of the way to draft."""
        ...


@dataclass(frozen=True)
class DraftingMethod:
    """A way to draft with a network, and how much, under the name that the log shows."""

    name: str
    drafter: Callable[[Any], Drafter]
    block_size: int
    budget: int


@dataclass(frozen=True)
class ReplayedAcceptance:
    """Decodes every recorded response again, `batch_size` at a time.

    Exact for greedy responses up to the rounding of the recorded features; for sampled ones it is the
    acceptance along the recorded text.
    """

    conversations: Sequence[Conversation]
    methods: Sequence[DraftingMethod]
    batch_size: int = 8

    def __call__(self, network: DraftNetwork) -> dict[str, float]:
        """Acceptance length per method over all rounds of all conversations."""
        counts = {method.name: self.counts(network, method) for method in self.methods}
        return {name: acceptance_length(accepted, rounds) for name, (accepted, rounds) in counts.items()}

    def counts(self, network: DraftNetwork, method: DraftingMethod) -> tuple[int, int]:
        """(accepted nodes, rounds) of all conversations."""
        each = self.counts_of_each(network, method)
        return sum(accepted for accepted, _ in each), sum(rounds for _, rounds in each)

    def counts_of_each(self, network: DraftNetwork, method: DraftingMethod) -> list[tuple[int, int]]:
        """(accepted nodes, rounds) of every conversation."""
        conversations = self.conversations
        device = next(network.parameters()).device
        target = RecordedTarget(conversations, network.vocab_size, device)
        policy = FixedPolicy(method.block_size, method.budget)
        engine = Engine(Parts(target, method.drafter(network), policy), max_batch=self.batch_size)
        requests = [
            engine.submit(
                c.tokens[: c.response_start].tolist(),
                GenerationSettings(max_tokens=len(c.tokens) - c.response_start),
            )
            for c in conversations
        ]
        engine.run()
        return [(request.statistics.accepted, request.statistics.rounds) for request in requests]
