"""Tokens to text as they arrive: never half a character, never a stop string, never a change of mind."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Decodes a growing token sequence and looks for stop strings across everything emitted.

    `push` returns text that is final. Text that may be the beginning of a stop string, or an incomplete
    character, waits until more tokens decide; `flush` releases it at the end.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()):
        self._decode = decode
        self._stop = tuple(stop)
        self._window: list[int] = []  # tokens whose text may still change, preceded by one settled token
        self._settled = ""  # text of the settled prefix of the window
        self._waiting = ""  # decoded text that is held back
        self.stopped = False

    def push(self, token: int, may_stop: bool = True) -> str:
        """Add a token; the text that it makes final.

        Sets `stopped` when a stop string is complete, which does not count while it may not stop.
        """
        assert not self.stopped, "a token after the stop string"
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith("\N{REPLACEMENT CHARACTER}") or not text.startswith(self._settled):
            return ""
        self._waiting += text[len(self._settled) :]
        # Decoders look at neighbours (leading spaces): keep one token of context.
        self._window = self._window[-1:]
        self._settled = self._decode(self._window)
        if not may_stop:
            text, self._waiting = self._waiting, ""
            return text
        return self._release()

    def flush(self) -> str:
        """The text still held back, once no more tokens come."""
        if self.stopped:
            return ""
        tail = self._decode(self._window)[len(self._settled) :]
        text, self._waiting = self._waiting + tail, ""
        return text

    def _release(self) -> str:
        ends = [at for stop in self._stop if (at := self._waiting.find(stop)) >= 0]
        if ends:
            self.stopped = True
            text, self._waiting = self._waiting[: min(ends)], ""
            return text
        held = max((_overlap(self._waiting, stop) for stop in self._stop), default=0)
        cut = len(self._waiting) - held
        text, self._waiting = self._waiting[:cut], self._waiting[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
