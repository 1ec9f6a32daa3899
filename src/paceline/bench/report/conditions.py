"""What a table's numbers are and where they come from, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.bench.wording import counted, shown

_SPEEDUP = "Speed-ups are over `plain`: medians of answers, paired"
_TAU = "tau is tokens per round, bonus included."
OF_SETS = f"{_SPEEDUP}; {_TAU}"
OF_ALL = f"{_SPEEDUP}, with 95% bootstrap intervals; tokens/s are all tokens over all seconds; {_TAU}"
"""What the columns of a table are."""


def conditions(provenance: Sequence[Mapping[str, Any]], answers: int, limits: Iterable[float]) -> str:
    """The target, what was asked of it and the machine: of several runs every value that any of them had. `limits` are
    the most tokens that an answer could have.

    Raises:
        KeyError: a run that does not say one of them.
    """
    target = _every([{"target": Path(str(facts["target"])).name} for facts in provenance], "target")
    most = " or ".join(map(shown, sorted(set(limits))))
    threads = _every(provenance, "threads")
    accelerator = _every(provenance, "accelerator")
    return (
        f"{target}, {_every(provenance, 'dtype')}, batch {_every(provenance, 'batch')}, {counted(answers, 'answer')}"
        f"{f' of at most {most} tokens' if most else ''}; {'' if accelerator == 'none' else f'{accelerator}, '}"
        f"{_every(provenance, 'processor')} ({_every(provenance, 'cpu_capability')}), {threads} "
        f"{'thread' if threads == '1' else 'threads'}, torch {_every(provenance, 'torch')}, transformers "
        f"{_every(provenance, 'transformers')}."
    )


def _every(provenance: Sequence[Mapping[str, Any]], name: str) -> str:
    return " or ".join(dict.fromkeys(str(facts[name]) for facts in provenance))
