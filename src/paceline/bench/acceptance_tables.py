"""Acceptance by block size, prompt by prompt: read from labels, or from published tables.

A published table is a JSON object {"datasets": {name: {"acceptance_length": {"16": [tau of each prompt]},
"published_selection": [size for each prompt]}}}; the selection may be absent.

Letters: n prompts, k block sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from paceline.errors import CheckpointError, InputError
from paceline.labels import Label, read_labels, with_rounds

PUBLISHED = "published"


@dataclass(frozen=True)
class AcceptanceTable:
    """One prompt set. `selections` are ways to choose a size for each prompt, by name, as columns of the table."""

    name: str
    block_sizes: tuple[int, ...]
    tau: Float64[np.ndarray, "n k"]
    tokens_per_s: Float64[np.ndarray, "n k"] | None
    selections: dict[str, Int64[np.ndarray, " n"]]

    def __len__(self) -> int:
        return len(self.tau)

    def values(self, judge: str) -> Float64[np.ndarray, "n k"]:
        """tau or tokens/s.

        Raises:
            InputError: tokens/s of a published table.
        """
        found = self.tau if judge == "tau" else self.tokens_per_s
        if found is None:
            raise InputError(f"{self.name} comes from a table, which has no {judge}; give a folder of labels.")
        return found


def read_tables(
    path: Path, block_sizes: Sequence[int], choose: Callable[[Label], int] | None = None
) -> list[AcceptanceTable]:
    """The prompt sets of a folder of labels, or of a published table, in alphabetical order.

    `block_sizes` are the candidates; where none are named, those of the labels, or those that lie within the published
    selection. `choose` is the policy to judge on labels.

    Raises:
        InputError: a file of another form, a size that is not in it, or a policy with a table, which has no logits.
        CheckpointError: damaged labels.
    """
    if path.is_dir():
        return _of_labels(with_rounds(read_labels(path)), block_sizes, choose)
    if choose is not None:
        raise InputError(f"a policy reads logits, but the table {path} has none; give a folder of labels.")
    return _of_published(path, block_sizes)


def joined(tables: Sequence[AcceptanceTable]) -> AcceptanceTable:
    """All prompts of several sets of the same sizes and selections."""
    first = tables[0]
    common = [name for name in first.selections if all(name in table.selections for table in tables)]
    rates = [table.tokens_per_s for table in tables if table.tokens_per_s is not None]
    return AcceptanceTable(
        "all",
        first.block_sizes,
        np.concatenate([table.tau for table in tables]),
        np.concatenate(rates) if len(rates) == len(tables) else None,
        {name: np.concatenate([table.selections[name] for table in tables]) for name in common},
    )


def _of_labels(
    labels: Sequence[Label], block_sizes: Sequence[int], choose: Callable[[Label], int] | None
) -> list[AcceptanceTable]:
    sizes = tuple(labels[0].block_sizes.tolist())
    tables = []
    for name in sorted({label.set_name for label in labels}):
        own = [label for label in labels if label.set_name == name]
        tau = np.stack([label.acceptance_length.numpy() for label in own])
        rates = np.stack([label.tokens_per_s.numpy() for label in own])
        table = AcceptanceTable(name, sizes, tau, rates, {})
        if choose is not None:
            table = _with_selection(table, "policy", [choose(label) for label in own])
        tables.append(_restricted(table, block_sizes))
    return tables


def _of_published(path: Path, block_sizes: Sequence[int]) -> list[AcceptanceTable]:
    form = f'{path} is not of the form {{"datasets": {{name: {{"acceptance_length": {{"16": [...]}}}}}}}}'
    try:
        sets: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["datasets"]
        tables = [_one_published(name, found, block_sizes) for name, found in sorted(sets.items())]
    except OSError as error:
        raise InputError(f"the table {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{form}.") from error
    if not tables or len({table.block_sizes for table in tables}) > 1:
        raise InputError(f"{form}, with one or more sets of the same block sizes.")
    return tables


def _one_published(name: str, found: dict[str, Any], block_sizes: Sequence[int]) -> AcceptanceTable:
    columns = {int(size): np.asarray(values, np.float64) for size, values in found["acceptance_length"].items()}
    sizes = tuple(sorted(columns))
    tau = np.stack([columns[size] for size in sizes], 1)
    if not len(tau):
        raise InputError(f"{name} has no prompts; leave it out.")
    if not np.isfinite(tau).all() or (tau < 1).any():
        raise InputError(f"{name} has an acceptance length below 1 or none, but the bonus is always emitted.")
    table = AcceptanceTable(name, sizes, tau, None, {})
    published = found.get("published_selection")
    if published is not None:
        table = _with_selection(table, PUBLISHED, published)
        within = [size for size in sizes if min(published) <= size <= max(published)]
        block_sizes = block_sizes or within
    return _restricted(table, block_sizes)


def _with_selection(table: AcceptanceTable, name: str, chosen: Sequence[int]) -> AcceptanceTable:
    unknown = sorted(set(chosen) - set(table.block_sizes))
    if unknown:
        raise InputError(
            f"the {name} selection for {table.name} has block size {unknown[0]}, which is not among those that were "
            f"tried, {list(table.block_sizes)}; give labels of that size too."
        )
    if len(chosen) != len(table):
        raise InputError(f"the {name} selection for {table.name} is for {len(chosen)} prompts, of {len(table)}.")
    columns = np.array([table.block_sizes.index(size) for size in chosen], np.int64)
    return replace(table, selections={**table.selections, name: columns})


def _restricted(table: AcceptanceTable, block_sizes: Sequence[int]) -> AcceptanceTable:
    """The columns of these sizes; all of them where none are named."""
    if not block_sizes:
        return table
    absent = sorted(set(block_sizes) - set(table.block_sizes))
    if absent:
        raise InputError(f"{table.name} has no block size {absent[0]}; it has {list(table.block_sizes)}.")
    columns = [table.block_sizes.index(size) for size in sorted(set(block_sizes))]
    outside = [name for name, chosen in table.selections.items() if not set(chosen.tolist()) <= set(columns)]
    if outside:
        raise CheckpointError(
            f"the {outside[0]} selection for {table.name} has other block sizes than {sorted(set(block_sizes))}; "
            "name them too."
        )
    moved = {name: np.searchsorted(columns, chosen) for name, chosen in table.selections.items()}
    rates = table.tokens_per_s[:, columns] if table.tokens_per_s is not None else None
    return AcceptanceTable(
        table.name, tuple(table.block_sizes[c] for c in columns), table.tau[:, columns], rates, moved
    )
