"""What a table's numbers are and where they come from, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONVENTION = (
    "Speed-ups are over `plain`: medians of answers, paired, with 95% bootstrap intervals; tokens/s are all tokens "
    "over all seconds; tau is tokens per round, bonus included."
)


def conditions(provenance: Sequence[Mapping[str, Any]], answers: int) -> str:
    """The target, what was asked of it and the machine: of several runs every value that any of them had.

    Raises:
        KeyError: a run that does not say one of them.
    """
    target = _every([{"target": Path(str(facts["target"])).name} for facts in provenance], "target")
    most = [facts for facts in provenance if "max_tokens" in facts]
    limit = f" of at most {_every(most, 'max_tokens')} tokens" if most else ""
    threads = _every(provenance, "threads")
    return (
        f"{target}, {_every(provenance, 'dtype')}, batch {_every(provenance, 'batch')}, {answers} "
        f"{'answer' if answers == 1 else 'answers'}{limit}; {_every(provenance, 'processor')} "
        f"({_every(provenance, 'cpu_capability')}), {threads} {'thread' if threads == '1' else 'threads'}, "
        f"torch {_every(provenance, 'torch')}, transformers {_every(provenance, 'transformers')}."
    )


def _every(provenance: Sequence[Mapping[str, Any]], name: str) -> str:
    return " or ".join(dict.fromkeys(str(facts[name]) for facts in provenance))
