"""Many requests on one target: admitted, decoded and finished between rounds.

submit -> waiting -> admit (prefill) -> rounds -> finished or cancelled
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from paceline.decode import Batch, Parts, admit, decode_round, empty_row, keep_prefix, leave
from paceline.errors import InputError, PromptTooLongError
from paceline.grammar import GrammarCompiler
from paceline.metrics import StageClock
from paceline.prefixes import PrefixStore
from paceline.sequence import ActiveSequence, Constraint
from paceline.text import TextStream
from paceline.types import FinishReason, GenerationSettings, Piece, Statistics


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str: ...


@dataclass
class Request:
    """A submitted request: what it has emitted, the pieces that nobody streamed yet, and how it ended."""

    id: int
    prompt: list[int]
    settings: GenerationSettings
    text: TextStream | None
    sequence: ActiveSequence
    tokens: list[int] = field(default_factory=list)
    pieces: deque[Piece] = field(default_factory=deque)
    finish_reason: FinishReason | None = None

    @property
    def statistics(self) -> Statistics:
        return self.sequence.statistics


class Engine:
    """Decodes up to `max_batch` requests together. A request's text does not depend on its neighbours.

    Without a tokenizer, pieces carry tokens only and stop strings are refused. The last `num_prefixes` finished
    sequences are kept, so that a prompt that begins as one of them is read from where it parts. `grammars` makes the
    compiler of grammars, once the first request has one.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: Tokenizer | None = None,
        max_batch: int = 8,
        clock: StageClock | None = None,
        num_prefixes: int = 0,
        grammars: Callable[[], GrammarCompiler] | None = None,
    ):
        if max_batch < 1:
            raise InputError(f"max_batch is {max_batch}, but must be at least 1.")
        self.parts = parts
        self.tokenizer = tokenizer
        self.max_batch = max_batch
        self.clock = clock or StageClock()
        self._prefixes = PrefixStore(num_prefixes if parts.observer is None else 0)
        self._make_grammars = grammars
        self._grammars: GrammarCompiler | None = None
        self._next_id = 0
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []
        if parts.drafter is not None:
            parts.target.check_layers(parts.drafter.feature_layers)
        self._batch = Batch(parts.target.new_cache(1, 0), None)
        if parts.drafter is not None:
            self._batch.draft_state = parts.drafter.new_state(1, 0, parts.target.info.device)

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or being decoded."""
        return len(self._waiting) + len(self._active)

    def submit(self, prompt: list[int], settings: GenerationSettings) -> Request:
        """Queue a request.

        Raises:
            InputError: an empty prompt, a token outside the vocabulary, stop strings or a grammar without a tokenizer,
                a grammar that cannot be compiled.
            PromptTooLongError: a prompt that leaves no room for a new token.
        """
        self._check(prompt, settings)
        text = None
        if self.tokenizer is not None:
            tokenizer = self.tokenizer
            text = TextStream(lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True), settings.stop)
        room = self.parts.target.info.max_context - len(prompt)
        sequence = ActiveSequence(list(prompt), settings, min(settings.max_tokens, room))
        sequence.statistics.prompt_tokens = len(prompt)
        sequence.constraint = self._constraint(settings)
        request = Request(self._next_id, list(prompt), settings, text, sequence)
        self._next_id += 1
        self._waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """Stop a request now; what it emitted stays."""
        if request.finish_reason is not None:
            return
        request.finish_reason = "cancelled"
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            self._release(request)

    def step(self) -> list[tuple[Request, Piece]]:
        """Admit what fits, decode one round, and return what every request gained."""
        if self.parts.observer is not None:
            self.parts.observer.between_rounds()
        pieces = [self._admit(self._waiting.popleft()) for _ in range(self._num_admissible())]
        if self._active:
            pieces += self._round()
        return pieces

    def stream(self, request: Request) -> Iterator[Piece]:
        """Step until this request ends, yielding its pieces; closing the iterator cancels it.

        What the steps of other streams gained for it is kept until it is asked for, so streams may interleave.
        """
        try:
            while request.pieces or request.finish_reason is None:
                if not request.pieces:
                    self.step()
                while request.pieces:
                    yield request.pieces.popleft()
        finally:
            self.cancel(request)

    def run(self) -> None:
        """Step until nothing is left."""
        while self.num_unfinished:
            self.step()

    def _num_admissible(self) -> int:
        return min(len(self._waiting), self.max_batch - len(self._active))

    def _admit(self, request: Request) -> tuple[Request, Piece]:
        started = perf_counter()
        row = len(self._active)
        try:
            self._reserve(request)
            reuse = self._prefixes.find(request.prompt, request.settings.draft and self.parts.drafter is not None)
            request.statistics.cached_tokens = reuse.length if reuse is not None else 0
            first = admit(self.parts, self._batch, request.sequence, reuse)
        except BaseException:  # Ctrl-C too: the row is free again, and the request is over
            request.finish_reason = "cancelled"
            self._tell_finished(request)
            if len(self._batch.sequences) > row:
                leave(self._batch, row)
            else:
                empty_row(self._batch, row)
            raise
        self._active.append(request)
        request.statistics.prefill_s = perf_counter() - started
        return request, self._emit(request, [first])

    def _reserve(self, request: Request) -> None:
        """Room for the whole request and the widest pass it may ask for, so that rounds never allocate."""
        requests = [*self._active, request]
        nodes = max(self._widest_budget(r) for r in requests)
        slots = max(len(r.prompt) + r.sequence.max_tokens for r in requests) + nodes + 1
        self._batch.cache.reserve(len(self._active) + 1, slots)
        if self._batch.draft_state is not None:
            self._batch.draft_state.reserve(len(self._active) + 1, slots)

    def _widest_budget(self, request: Request) -> int:
        if self.parts.drafter is None or not request.settings.draft:
            return 0
        assert self.parts.policy is not None, "a drafter without a policy"
        return self.parts.policy.max_tree_budget(request.settings)

    def _round(self) -> list[tuple[Request, Piece]]:
        try:
            return self._decode_and_emit()
        except BaseException:  # Ctrl-C too: rows may now be of different ages, so that none can go on
            for row in reversed(range(len(self._active))):
                request = self._active.pop()
                request.finish_reason = request.finish_reason or "cancelled"
                self._tell_finished(request)
                leave(self._batch, row)
            raise

    def _decode_and_emit(self) -> list[tuple[Request, Piece]]:
        started = perf_counter()
        before, calls = dict(self.clock.seconds), self.clock.drafter_calls
        gained = decode_round(self.parts, self._batch, self.clock)
        requests = list(self._active)
        pieces = [(r, self._emit(r, tokens)) for r, tokens in zip(requests, gained, strict=True)]
        self.clock.lap("other")
        elapsed = perf_counter() - started
        for request in requests:
            request.statistics.decode_s += elapsed
            request.statistics.drafter_calls += self.clock.drafter_calls - calls
            for stage, seconds in self.clock.seconds.items():
                spent = 1e3 * (seconds - before.get(stage, 0.0))
                request.statistics.stage_ms[stage] = request.statistics.stage_ms.get(stage, 0.0) + spent
        return pieces

    def _emit(self, request: Request, tokens: list[int]) -> Piece:
        """Hand out tokens up to the earliest of end-of-text, stop string and limit; nothing after it."""
        text, emitted = "", []
        for token in tokens:
            emitted.append(token)
            request.statistics.tokens += 1
            if token in request.sequence.ends:
                request.finish_reason = "stop"
            elif request.text is not None:
                text += request.text.push(token, request.statistics.tokens >= request.settings.min_tokens)
                if request.text.stopped:
                    request.finish_reason = "stop"
            if request.finish_reason is None and request.sequence.remaining == 0:
                request.finish_reason = "length"
            if request.finish_reason is not None:
                break
        logprobs = tuple(request.sequence.logprobs[len(request.tokens) :][: len(emitted)])
        request.tokens.extend(emitted)
        request.statistics.count_accepted(len(emitted) - 1)
        if request.finish_reason is None:
            piece = Piece(text, tuple(emitted), logprobs=logprobs)
        else:
            text += request.text.flush() if request.text is not None else ""
            self._release(request)
            piece = Piece(text, tuple(emitted), request.finish_reason, request.statistics, logprobs)
        request.pieces.append(piece)
        return piece

    def _release(self, request: Request) -> None:
        row = self._active.index(request)
        self._tell_finished(request)
        try:
            if self._prefixes.capacity:
                self._prefixes.keep(keep_prefix(self.parts, self._batch, row))
        finally:
            leave(self._batch, row)
            self._active[row] = self._active[-1]
            self._active.pop()

    def _tell_finished(self, request: Request) -> None:
        if self.parts.observer is not None:
            self.parts.observer.on_finish(request.sequence)

    def _constraint(self, settings: GenerationSettings) -> Constraint | None:
        if settings.grammar is None:
            return None
        if self.parts.rule is not None:
            raise InputError("a grammar cuts draft trees, which only the match rule allows; leave the other rule out.")
        if self._make_grammars is None:
            raise InputError("a grammar needs a tokenizer, and this engine has none; load the model with one.")
        self._grammars = self._grammars or self._make_grammars()
        return self._grammars.constraint(settings.grammar, settings.ends(self.parts.target.info.eos_token_ids))

    def _check(self, prompt: list[int], settings: GenerationSettings) -> None:
        info = self.parts.target.info
        if not prompt:
            raise InputError("the prompt is empty, but must have at least one token.")
        outside = [t for t in prompt if not 0 <= t < info.vocab_size]
        if outside:
            raise InputError(f"prompt token {outside[0]} is outside the vocabulary of {info.vocab_size} tokens.")
        named = [t for t in (*settings.logit_bias, *settings.stop_token_ids) if not 0 <= t < info.vocab_size]
        if named:
            raise InputError(
                f"token {named[0]} of logit_bias or stop_token_ids is outside the vocabulary of {info.vocab_size} "
                "tokens."
            )
        if len(prompt) >= info.max_context:
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens, but {info.name} has a context of {info.max_context}, "
                "which must also hold the answer; shorten the prompt."
            )
        if settings.stop and self.tokenizer is None:
            raise InputError("stop strings need a tokenizer, and this engine has none; stop on token ids instead.")
