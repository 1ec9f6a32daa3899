"""What adaptation is told."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import InputError


@dataclass(frozen=True)
class AdaptationSettings:
    """How a drafter learns while it serves.

    `expected_queries` are those still to come when it begins; None expects the stream to last as long again as it has
    since it last changed, and queries to arrive at the rate they did. `max_loss` is the share of the stream's time
    that updates may lose in the end. `buffer_tokens` bounds what is kept to learn from; of a conversation, no more than
    `max_length`. Nothing is learned before there are `min_conversations`. An update takes `head_steps` or `whole_steps`
    steps over `batch_size` conversations each. `background` learns in a thread beside the serving one. `forced` updates
    as soon as there is anything to learn from, and keeps whatever comes of it: to prove that texts stay as they are.

    Raises:
        InputError: a value outside its range.
    """

    expected_queries: int | None = None
    max_loss: float = 0.015
    buffer_tokens: int = 16_384
    max_length: int = 1024
    min_conversations: int = 12
    head_steps: int = 8
    whole_steps: int = 8
    batch_size: int = 4
    num_anchors: int = 16
    learning_rate: float = 2e-4
    background: bool = False
    forced: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.expected_queries is not None and self.expected_queries < 0:
            raise InputError(f"expected_queries is {self.expected_queries}, but must be 0 or more.")
        if not 0.0 <= self.max_loss <= 1.0:
            raise InputError(f"max_loss is {self.max_loss}, but must be within 0 to 1.")
        if not 0.0 < self.learning_rate < float("inf"):
            raise InputError(f"learning_rate is {self.learning_rate}, but must be above 0.")
        counts = ("buffer_tokens", "max_length", "min_conversations", "head_steps", "whole_steps", "batch_size")
        for name in (*counts, "num_anchors"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.buffer_tokens < 4 * self.max_length:
            raise InputError(
                f"buffer_tokens is {self.buffer_tokens}, but must be at least 4 x max_length ({self.max_length}), "
                "so that there are conversations to learn from."
            )
