"""Records what a drafter learns from while the engine decodes: features and the target's likeliest tokens.

Letters: b rows, m nodes of a pass, n tokens, f width of the features, k recorded tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from paceline.acceptance import Accepted
from paceline.decode import RoundObserver
from paceline.learning.conversation import Conversation
from paceline.sequence import ActiveSequence
from paceline.target.base import Pass

TOP = 16


@dataclass
class _Rows:
    """Row t describes token t and the distribution after it."""

    count: int = 0
    features: list[Tensor] = field(default_factory=list)
    top_ids: list[Tensor] = field(default_factory=list)
    top_log_probs: list[Tensor] = field(default_factory=list)

    def add(self, features: Tensor, top_ids: Tensor, top_log_probs: Tensor) -> None:
        self.features.append(features)
        self.top_ids.append(top_ids)
        self.top_log_probs.append(top_log_probs)
        self.count += len(features)


class Recorder(RoundObserver):
    """A round observer that keeps the rows of the sequences it was asked to watch, the first `max_rows` of each."""

    def __init__(self, feature_layers: Sequence[int], max_rows: int | None = None):
        self.feature_layers, self._max_rows = tuple(feature_layers), max_rows
        self._rows: dict[int, _Rows] = {}

    def watch(self, sequence: ActiveSequence) -> None:
        """Record this sequence from its prefill on."""
        self._rows[id(sequence)] = _Rows()

    def on_prefill(self, sequence: ActiveSequence, result: Pass) -> None:
        rows = self._rows.get(id(sequence))
        if rows is None:
            return
        assert result.features is not None, "nothing is tapped"
        unknown = result.features.shape[1] - 1
        ids, log_probs = _top(result.logits[0])
        rows.add(
            result.features[0].to("cpu", torch.bfloat16),
            torch.cat([ids.new_zeros(unknown, TOP), ids]),
            torch.cat([log_probs.new_zeros(unknown, TOP), log_probs]),
        )

    def on_round(self, sequences: Sequence[ActiveSequence], result: Pass, accepted: Accepted) -> None:
        assert result.features is not None, "nothing is tapped"
        watched = [(row, rows) for row, s in enumerate(sequences) if (rows := self._open(s)) is not None]
        kept = [[0, *accepted.paths[row]] for row, _ in watched]
        if not kept:
            return
        at = [row for (row, _), nodes in zip(watched, kept, strict=True) for _ in nodes], list(chain(*kept))
        features = result.features[at].to("cpu", torch.bfloat16)
        ids, log_probs = _top(result.logits[at])
        counts = list(map(len, kept))
        parts = zip(features.split(counts), ids.split(counts), log_probs.split(counts), strict=True)
        for (_, rows), part in zip(watched, parts, strict=True):
            rows.add(*part)

    def _open(self, sequence: ActiveSequence) -> _Rows | None:
        """The rows of a sequence to which more are to come."""
        rows = self._rows.get(id(sequence))
        return None if rows is None or (self._max_rows is not None and rows.count >= self._max_rows) else rows

    def watches(self, sequence: ActiveSequence) -> bool:
        """Whether this sequence is being recorded."""
        return id(sequence) in self._rows

    def forget(self, sequence: ActiveSequence) -> None:
        """Drop what was recorded of a sequence, if anything."""
        self._rows.pop(id(sequence), None)

    def take(self, sequence: ActiveSequence, tokens: Sequence[int], response_start: int) -> Conversation:
        """The finished conversation, as far as it was kept; its rows are forgotten here."""
        rows = self._rows.pop(id(sequence))
        known = min(len(tokens) - 1, rows.count)  # nothing was computed after the last token
        if self._max_rows is not None:
            known = min(known, self._max_rows - 1)
        return Conversation(
            torch.tensor(tokens[: known + 1], dtype=torch.int32),
            response_start,
            _with_blank(torch.cat(rows.features)[:known]),
            _with_blank(torch.cat(rows.top_ids)[:known]),
            _with_blank(torch.cat(rows.top_log_probs)[:known]),
        )


def _top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Int32[n, k] and Float16[n, k] of logits [n, v]."""
    logits = logits.float()
    top = logits.topk(TOP, -1)
    log_probs = top.values - logits.logsumexp(-1, keepdim=True)
    return top.indices.to("cpu", torch.int32), log_probs.to("cpu", torch.float16)


def _with_blank(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
