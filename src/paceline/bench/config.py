"""What a bench is told, apart from where its results go: all that a worker needs, and picklable."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.bench.judging.judge import Kind
from paceline.bench.sweep import Sweep, requests
from paceline.prompts import Prompt
from paceline.types import GenerationSettings


@dataclass(frozen=True)
class BenchConfig:
    """Methods by name, the prompts, what is asked of each, and how the models are loaded.

    `asking` are the settings of every request without sizes of drafts; `command` is what was typed, for the record.
    """

    methods: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    asking: GenerationSettings
    target: str | None = None
    drafters: tuple[str, ...] = ()
    tree_budget: int | None = None
    block_size: int | None = None
    policies: tuple[str, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    dtype: str | None = None
    thinking: bool | None = None
    device: str | None = None
    threads: int | None = None
    repeats: int = 1
    judged: tuple[Kind, ...] = ()
    command: tuple[str, ...] = ()

    def requests(self) -> Sequence[tuple[GenerationSettings, dict[str, float]]]:
        """What each prompt is asked in turn."""
        return requests(self.asking, self.sweeps)

    @property
    def num_answers(self) -> int:
        """Turns of all prompts, each of which every method answers once for each request (`repeats` aside)."""
        return sum(len(prompt.turns) for prompt in self.prompts) * len(self.requests())

    def settings(self) -> dict[str, Any]:
        """What a results file must have been begun with to be gone on with, as JSON has it."""
        asking = self.asking
        return {
            "methods": list(self.methods),
            "drafters": list(self.drafters),
            "prompts": [[p.set_name, p.id, _digest(p)] for p in self.prompts],
            "tree_budget": self.tree_budget,
            "block_size": self.block_size,
            "policies": list(self.policies),
            "sweeps": [[sweep.name, list(sweep.values)] for sweep in self.sweeps],
            "repeats": self.repeats,
            "max_tokens": asking.max_tokens,
            "temperature": asking.temperature,
            "grammar": None if asking.grammar is None else [asking.grammar.kind, asking.grammar.source],
            "judged": list(self.judged),
        }


def _digest(prompt: Prompt) -> str:
    """What identifies all that is asked and judged."""
    return hashlib.sha256(repr((prompt.turns, prompt.reference)).encode()).hexdigest()[:16]
