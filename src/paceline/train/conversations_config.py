"""Everything that recording conversations is told; flags are generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InputError


@dataclass(frozen=True)
class ConversationsConfig:
    """Record conversations: prompts invented by the target or read from files, answered by the target.

    Each conversation's tokens are kept with the features of the tapped layers and the target's likeliest next tokens.
    """

    out: Path
    """Folder for the shards; a folder with shards of the same settings is completed."""
    target: str | None = None
    """Hugging Face name or folder; the embedded SmolLM2-135M-Instruct where not given."""
    prompts: tuple[Path, ...] = ()
    """JSON Lines of {"turns": [user turn, ...]} to answer instead of invented prompts."""
    response_tokens: int = 1_000_000
    """Stop after this many response tokens (files of prompts: or at their end)."""
    target_layer_ids: tuple[int, ...] = (1, 14, 27)
    """Target layers whose outputs are recorded."""
    starters: float = 0.6
    """Share of invented prompts that begin with one of our starter phrases; the rest is free."""
    max_prompt_tokens: int = 80
    """Invented prompts are cut after this many tokens."""
    max_response_tokens: int = 224
    """Answers are cut after this many tokens."""
    temperature: float = 0.0
    """Temperature of the answers; 0 is greedy."""
    batch: int = 64
    """Conversations decoded together."""
    conversations_per_shard: int = 256
    """Conversations in a shard: what a kill may lose."""
    seed: int = 0
    """Seed of the starters and of all sampling."""
    dtype: str | None = None
    """Type of the weights; where not given, float32 on a CPU and the checkpoint's own elsewhere."""
    device: str | None = None
    """Where to compute; the best one present where not given."""
    threads: int | None = None
    """CPU threads; PyTorch's choice where not given."""

    def __post_init__(self) -> None:
        for name in (
            "response_tokens",
            "max_prompt_tokens",
            "max_response_tokens",
            "batch",
            "conversations_per_shard",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if not 0.0 <= self.starters <= 1.0:
            raise InputError(f"starters is {self.starters}, but must be within 0..1.")
        if not self.target_layer_ids:
            raise InputError("target_layer_ids is empty, but at least one layer must be recorded.")
