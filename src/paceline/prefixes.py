"""What finished sequences leave behind, so that a prompt that begins as one of them is not read again.

A conversation's next turn begins with the turns before it: their keys and values in the target's cache and in the
drafter's state are copied back, and only what is new is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class KeptPrefix:
    """The tokens of a sequence, and what the caches held for them; the drafter's part only where it drafted."""

    tokens: tuple[int, ...]
    target: Any
    draft: Any
    has_draft: bool


@dataclass(frozen=True)
class Reuse:
    """A kept prefix and how many of its tokens a prompt shares."""

    prefix: KeptPrefix
    length: int


class PrefixStore:
    """The last `capacity` sequences, the one that was used longest ago dropped first."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._kept: list[KeptPrefix] = []

    def keep(self, prefix: KeptPrefix) -> None:
        """Remember a sequence, in place of those that it continues."""
        self._kept = [k for k in self._kept if not _continues(prefix, k)]
        self._kept = [*self._kept, prefix][-self.capacity :] if self.capacity else []

    def find(self, prompt: Sequence[int], drafts: bool) -> Reuse | None:
        """The longest start of a prompt that is kept, its last token left out: that one has to be read."""
        best: Reuse | None = None
        for prefix in self._kept:
            length = min(_common(prefix.tokens, prompt), len(prompt) - 1)
            if length > (best.length if best else 0) and (prefix.has_draft or not drafts):
                best = Reuse(prefix, length)
        if best is not None:
            self._kept.remove(best.prefix)
            self._kept.append(best.prefix)
        return best


def _continues(prefix: KeptPrefix, earlier: KeptPrefix) -> bool:
    return earlier.tokens == prefix.tokens[: len(earlier.tokens)] and prefix.has_draft >= earlier.has_draft


def _common(tokens: Sequence[int], others: Sequence[int]) -> int:
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(others)))
