"""What a stream has shown of late: conversations to learn from, and some that are kept apart to measure on."""

from __future__ import annotations

from collections import deque

from paceline.learning.conversation import Conversation

_APART, _MOST_APART = 4, 6
"""Every fourth conversation is kept apart, and so many of those at most."""
_LEAST_RESPONSE = 8
_SPAN = 6
"""Tokens in a row that count as having come before: prose hardly ever has so many in common by chance."""


class StreamBuffer:
    """Bounded by tokens: the oldest conversations go first. It is ready once it was shown `ready_at` of them."""

    def __init__(self, max_tokens: int, ready_at: int = _APART):
        self.max_tokens, self.ready_at = max_tokens, ready_at
        self.training: deque[Conversation] = deque()
        self.apart: deque[Conversation] = deque(maxlen=_MOST_APART)
        self._count, self._shown, self._is_closed = 0, 0, False

    def add(self, conversation: Conversation) -> None:
        """A finished one; what is too short to learn from, or too long to keep, is left out."""
        length = len(conversation.tokens)
        if length - conversation.response_start < _LEAST_RESPONSE or length > self.max_tokens:
            return
        self._count, self._shown = self._count + 1, self._shown + 1
        if self._count % _APART == 0:
            self.apart.append(conversation)
            return
        self.training.append(conversation)
        while sum(len(kept.tokens) for kept in self.training) > self.max_tokens:
            self.training.popleft()

    @property
    def is_ready(self) -> bool:
        """Whether there is something to learn from and to measure on."""
        if self._is_closed or self._shown < self.ready_at:
            return False
        return len(self.training) >= _APART - 1 and len(self.apart) >= 1

    def recurring(self) -> float:
        """The share of the responses kept apart that the others have word for word, in spans of a few tokens."""
        known = set().union(*map(_spans, self.training))
        spans = [span for conversation in self.apart for span in _spans(conversation)]
        return sum(span in known for span in spans) / max(1, len(spans))

    def close(self) -> None:
        """Be ready for nothing more."""
        self._is_closed = True

    def forget(self, keep: int = 0) -> None:
        """Drop all but the last `keep` conversations, where a stream has changed."""
        while len(self.training) > keep:
            self.training.popleft()
        while len(self.apart) > keep // _APART:
            self.apart.popleft()
        self._shown = len(self.training) + len(self.apart)


def _spans(conversation: Conversation) -> list[tuple[int, ...]]:
    response = conversation.tokens[conversation.response_start :].tolist()
    return [tuple(response[start : start + _SPAN]) for start in range(len(response) - _SPAN + 1)]
