"""How a finished answer is summed up on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from paceline.types import FinishReason, Statistics, TokenLogprob

if TYPE_CHECKING:
    from paceline.adaptation.learner import Update


def summary(statistics: Statistics, finish_reason: FinishReason | None) -> str:
    """What the answer took, how much was drafted, and where the time of a round went: a line for each."""
    counts = (
        f"{statistics.tokens} tokens in {statistics.rounds} rounds, "
        f"acceptance length {statistics.acceptance_length:.2f} (bonus included), "
        f"{statistics.tokens_per_s:.1f} tokens/s, finish: {finish_reason}"
    )
    if statistics.drafted and statistics.rounds:
        counts += f"\n{_drafted(statistics)}"
    rounds = max(statistics.rounds, 1)
    stages = ", ".join(f"{stage} {ms / rounds:.1f}" for stage, ms in statistics.stage_ms.items())
    read = f"\nprompt of {statistics.prompt_tokens} tokens read in {statistics.prefill_s:.2f} s"
    looked = f"; the policy's look at the prompt: {statistics.predict_ms:.1f}" if statistics.predict_ms else ""
    return f"{counts}{read}\nms per round: {stages}{looked}" if stages else f"{counts}{read}"


def _drafted(statistics: Statistics) -> str:
    """Nodes and block sizes, which a policy decides."""
    sizes = sorted((size, count) for size, count in statistics.block_sizes.items() if size > 1)
    blocks = ", ".join(f"{size} in {count}" for size, count in sizes) or "none"
    still = statistics.rounds - sum(count for _, count in sizes)
    rest = f"; {still} {'round' if still == 1 else 'rounds'} without the draft network" if still and sizes else ""
    return f"{statistics.drafted / statistics.rounds:.1f} nodes a round; block size: {blocks} rounds{rest}"


def learned(updates: Sequence[Update]) -> str:
    """What a drafter learned while it served, in a line."""
    if not updates:
        return "the drafter has not learned: too little came yet, or it was not expected to pay"
    kept = [update for update in updates if update.kept]
    seconds = sum(update.seconds for update in updates)
    return f"the drafter learned {len(updates)} times in {seconds:.1f} s; {len(kept)} updates were kept"


def logprob_table(logprobs: Sequence[TokenLogprob], label: Callable[[int], str]) -> Table:
    """A line for every token: its log-probability, and the likeliest tokens in its place."""
    table = Table("token", "log-prob", "likeliest", box=None, pad_edge=False)
    for entry in logprobs:
        top = "  ".join(f"{label(token)} {logprob:.3f}" for token, logprob in entry.top)
        table.add_row(Text(label(entry.token)), f"{entry.logprob:.3f}", Text(top))
    return table
