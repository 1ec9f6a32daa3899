"""What choosing the block size by prompt is worth: fixed sizes, the best fixed one, a policy, the oracle.

The best fixed size is chosen on other prompts than it is judged on: on the training labels where there are any, else
on one half of the prompts for the other half. The oracle picks each prompt's best size afterwards: no policy can do
better.

Letters: n prompts, k block sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from paceline.bench.acceptance_tables import AcceptanceTable

BEST_FIXED, ORACLE = "best fixed", "oracle"
_RESAMPLES = 2000


@dataclass(frozen=True)
class Row:
    """One way to choose, on one prompt set: the mean over prompts, and what it is over the best fixed size.

    `gain` is the ratio of means to the best fixed size's, with a percentile bootstrap interval over prompts (paired);
    `regret` is what it lacks to the oracle, in the judge's unit. `size` is the one size of a fixed choice.
    """

    set_name: str
    prompts: int
    judge: str
    method: str
    mean: float
    gain: float
    gain_low: float
    gain_high: float
    regret: float
    hits: int
    size: str


def report_rows(table: AcceptanceTable, judge: str, training: Float64[np.ndarray, "m k"] | None = None) -> list[Row]:
    """A row for every fixed size, the best fixed one, every selection of the table, and the oracle."""
    values = table.values(judge)
    best_fixed = _best_fixed(values, training)
    chosen = {f"fixed {size}": np.full(len(values), column) for column, size in enumerate(table.block_sizes)}
    chosen[BEST_FIXED] = best_fixed
    chosen |= table.selections
    chosen[ORACLE] = values.argmax(1)
    taken = {name: _taken(values, columns) for name, columns in chosen.items()}
    return [
        _row(table, judge, name, columns, taken, (taken[name] == taken[ORACLE]).sum())
        for name, columns in chosen.items()
    ]


def histogram(table: AcceptanceTable, judge: str) -> dict[int, int]:
    """For how many prompts each size is the best."""
    counts = np.bincount(table.values(judge).argmax(1), minlength=len(table.block_sizes))
    return dict(zip(table.block_sizes, counts.tolist(), strict=True))


def _best_fixed(
    values: Float64[np.ndarray, "n k"], training: Float64[np.ndarray, "m k"] | None
) -> Int64[np.ndarray, " n"]:
    if training is not None:
        return np.full(len(values), training.mean(0).argmax())
    if len(values) < 2:
        return np.zeros(len(values), np.int64)
    even = np.arange(len(values)) % 2 == 0
    return np.where(even, values[~even].mean(0).argmax(), values[even].mean(0).argmax())


def _taken(values: Float64[np.ndarray, "n k"], columns: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    found: np.ndarray = values[np.arange(len(values)), columns]
    return found


def _row(
    table: AcceptanceTable,
    judge: str,
    name: str,
    columns: Int64[np.ndarray, " n"],
    taken: Mapping[str, Float64[np.ndarray, " n"]],
    hits: int,
) -> Row:
    own, base, best = taken[name], taken[BEST_FIXED], taken[ORACLE]
    draws = np.random.default_rng(0).integers(len(own), size=(_RESAMPLES, len(own)))
    low, high = np.percentile(own[draws].mean(1) / base[draws].mean(1), [2.5, 97.5])
    sizes = sorted({table.block_sizes[c] for c in columns.tolist()})
    shown = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
    mean = float(own.mean())
    return Row(
        table.name, len(own), judge, name, mean, mean / float(base.mean()), float(low), float(high),
        float(best.mean()) - mean, int(hits), shown,
    )  # fmt: skip
