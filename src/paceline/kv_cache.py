"""Preallocated key/value slots for a batch of sequences of different lengths.

A row is a sequence; its committed tokens fill slots 0 .. length-1. A pass over a tree of m nodes writes
slots length .. length+m-1, in the order of the pass; `keep` then moves the accepted path to the front:

    committed        pass of one round (root r, nodes 1..5)
    c c c c c c c | r 1 2 3 4 5 |            accepted path 2 -> 5
    c c c c c c c   r 2 5 |                  after keep([2, 5]); the next pass starts at the bar

Slots past the length hold leftovers, which masks hide. Nothing is allocated per round: storage grows, by
doubling, only when a row is admitted that does not fit.

Letters: b rows of the pass, h heads, n new tokens per row, t slots seen, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class LayerShape:
    """Heads and head sizes of one layer's keys and values."""

    num_heads: int
    key_size: int
    value_size: int


class SlotCache:
    """Keys and values of every layer, by row and slot. Layers of one shape share one tensor."""

    def __init__(
        self, shapes: Sequence[LayerShape], num_rows: int, num_slots: int, dtype: torch.dtype, device: torch.device
    ):
        self.shapes = tuple(shapes)
        self.dtype, self.device = dtype, device
        self.num_rows, self.num_slots = num_rows, num_slots
        self.lengths = [0] * num_rows
        self._group_of = {shape: [i for i, s in enumerate(shapes) if s == shape] for shape in set(shapes)}
        self._allocate()
        self.open(0, 0, 0)

    @torch.inference_mode(False)  # what is made inside that mode can never be written outside of it
    def _allocate(self) -> None:
        # keys, values of layer i are self._layers[i], views of the group tensors [layers, rows, heads, slots, size]
        self._groups: list[tuple[Tensor, Tensor]] = []
        self._layers: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(self.shapes)
        for shape, members in self._group_of.items():
            size = (len(members), self.num_rows, shape.num_heads, self.num_slots)
            keys = torch.zeros(*size, shape.key_size, dtype=self.dtype, device=self.device)
            values = torch.zeros(*size, shape.value_size, dtype=self.dtype, device=self.device)
            self._groups.append((keys, values))
            for index, layer in enumerate(members):
                self._layers[layer] = (keys[index], values[index])

    def reserve(self, num_rows: int, num_slots: int) -> None:
        """Make room for at least `num_rows` rows of `num_slots` slots, keeping what is stored."""
        if num_rows <= self.num_rows and num_slots <= self.num_slots:
            return
        old_groups, old_rows, old_slots = self._groups, self.num_rows, self.num_slots
        if num_rows > old_rows:
            self.num_rows = max(num_rows, 2 * old_rows)
        if num_slots > old_slots:
            self.num_slots = max(num_slots, min(2 * old_slots, num_slots + 1024))
        self._allocate()
        for old, new in zip(old_groups, self._groups, strict=True):
            for source, destination in zip(old, new, strict=True):
                destination[:, :old_rows, :, :old_slots] = source
        self.lengths += [0] * (self.num_rows - old_rows)

    def open(self, first_row: int, num_rows: int, width: int) -> None:
        """Start a pass that appends `width` tokens to each of `num_rows` rows from `first_row` on."""
        self.rows = slice(first_row, first_row + num_rows)
        self.starts = self.lengths[self.rows]
        self.width = width
        self.span = max(self.starts, default=0) + width
        assert self.span <= self.num_slots, "a pass past the last slot: reserve() was not called"
        self._slots: Int64[Tensor, "b n"] | None = None
        if num_rows > 1:
            starts = torch.tensor(self.starts, device=self.device)
            self._slots = starts[:, None] + torch.arange(width, device=self.device)
            self._row_index = torch.arange(first_row, first_row + num_rows, device=self.device)[:, None]

    def append(
        self, layer: int, keys: Float[Tensor, "b h n d"], values: Float[Tensor, "b h n e"]
    ) -> tuple[Float[Tensor, "b h t d"], Float[Tensor, "b h t e"]]:
        """Write one layer's new keys and values of the open pass; views of all slots seen come back."""
        seen = []
        for store, new in zip(self._layers[layer], (keys, values), strict=True):
            if self._slots is None:
                start = self.starts[0]
                store[self.rows, :, start : start + self.width] = new
            else:
                store[self._row_index, :, self._slots] = new.transpose(1, 2)
            seen.append(store[self.rows, :, : self.span])
        return seen[0], seen[1]

    def committed(self, rows: Sequence[int]) -> list[tuple[Float[Tensor, "b h t d"], Float[Tensor, "b h t e"]]]:
        """Keys and values of every layer for these rows, up to the longest one's length.

        Views when the rows are neighbours, in order; copies otherwise.
        """
        span = max(self.lengths[row] for row in rows)
        contiguous = list(rows) == list(range(rows[0], rows[0] + len(rows)))
        chosen = slice(rows[0], rows[0] + len(rows)) if contiguous else torch.tensor(rows, device=self.device)
        return [(keys[chosen, :, :span], values[chosen, :, :span]) for keys, values in self._layers]

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit, for each row of the pass, the root and the nodes of `paths` (parents first)."""
        for row, path in enumerate(paths, start=self.rows.start):
            start = self.lengths[row]
            if list(path) != list(range(1, len(path) + 1)):
                source = torch.tensor(path, device=self.device) + start
                for group in self._groups:
                    for store in group:
                        kept = store[:, row].index_select(2, source)
                        store[:, row, :, start + 1 : start + 1 + len(path)] = kept
            self.lengths[row] = start + 1 + len(path)

    def extend(self, counts: Sequence[int]) -> None:
        """Commit the first `counts[i]` appended tokens of each row of the pass."""
        for row, count in enumerate(counts, start=self.rows.start):
            self.lengths[row] += count

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another one and empty it."""
        if source != destination:
            length = self.lengths[source]
            for group in self._groups:
                for store in group:
                    store[:, destination, :, :length] = store[:, source, :, :length]
            self.lengths[destination] = length
        self.lengths[source] = 0 if source != destination else self.lengths[source]

    def save(self, row: int) -> list[Tensor]:
        """A copy of a row's committed keys and values, [layers, heads, tokens, size] for every shape of layer."""
        length = self.lengths[row]
        return [store[:, row, :, :length].clone() for group in self._groups for store in group]

    def restore(self, row: int, saved: Sequence[Tensor], length: int) -> None:
        """Put the first `length` tokens of a saved row into an empty one."""
        assert self.lengths[row] == 0, "the row is in use"
        for store, kept in zip((s for group in self._groups for s in group), saved, strict=True):
            store[:, row, :, :length] = kept[:, :, :length]
        self.lengths[row] = length

    def clear(self, row: int) -> None:
        """Empty a row, where there is one."""
        if row < self.num_rows:
            self.lengths[row] = 0
