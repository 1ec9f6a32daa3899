"""How a finished answer is summed up on the terminal."""

from __future__ import annotations

from paceline.types import FinishReason, Statistics


def summary(statistics: Statistics, finish_reason: FinishReason | None) -> str:
    """Two lines: what the answer took, and where the time of a round went."""
    counts = (
        f"{statistics.tokens} tokens in {statistics.rounds} rounds, "
        f"acceptance length {statistics.acceptance_length:.2f} (bonus included), "
        f"{statistics.tokens_per_s:.1f} tokens/s, finish: {finish_reason}"
    )
    rounds = max(statistics.rounds, 1)
    stages = ", ".join(f"{stage} {ms / rounds:.1f}" for stage, ms in statistics.stage_ms.items())
    return f"{counts}\nms per round: {stages}" if stages else counts
