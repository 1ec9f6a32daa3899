"""One conversation, as a recorder keeps it and a drafter learns from it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Conversation:
    """One conversation; a view into a shard where it was read from one."""

    tokens: Tensor
    """Int32[t]"""
    response_start: int
    """Index of the first response token; the response runs to the end."""
    features: Tensor
    """BFloat16[t, F]"""
    top_ids: Tensor
    """Int32[t, K]"""
    top_log_probs: Tensor
    """Float16[t, K]"""

    def cut(self, length: int) -> Conversation:
        """The first `length` tokens of it."""
        return Conversation(
            self.tokens[:length],
            min(self.response_start, length),
            self.features[:length],
            self.top_ids[:length],
            self.top_log_probs[:length],
        )
