"""The class that users hold: text in, text out."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.adaptation.adapter import Adapter
from paceline.decode import Parts
from paceline.device_clock import device_clock
from paceline.drafters.base import Drafter
from paceline.engine import Engine, Request
from paceline.errors import InputError
from paceline.grammar import GrammarCompiler, GrammarConstraint
from paceline.noise import sample_seed
from paceline.target.base import Target
from paceline.types import Completion, GenerationSettings, Piece, complete

#: Finished sequences whose caches a model keeps for prompts that begin like them.
NUM_PREFIXES = 2
MAX_SAMPLES = 1024


#: How chat templates name the switch of their thinking mode.
THINKING = "enable_thinking"


def _check_thinking(tokenizer: Any, thinking: bool | None) -> None:
    """Refuse a mode where the chat template has none.

    Raises:
        InputError: says so.
    """
    if thinking is not None and THINKING not in (tokenizer.chat_template or ""):
        raise InputError(f"thinking is {thinking}, but the target's chat template has no {THINKING}; leave it out.")


class Model:
    """A target with its tokenizer, drafter and policy: text in, text out.

    Requests of one `Model` share an engine, so `stream` may be called for several prompts at a time. `thinking`
    switches the thinking mode of chat templates that have one; as the template does by itself where None.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: Any,
        max_batch: int = 8,
        is_embedded: bool = False,
        num_prefixes: int = NUM_PREFIXES,
        thinking: bool | None = None,
    ):
        _check_thinking(tokenizer, thinking)
        self.parts = parts
        self.thinking = thinking
        self.is_embedded = is_embedded
        self.tokenizer = tokenizer
        self.engine = Engine(
            parts,
            tokenizer,
            max_batch,
            device_clock(parts.target.info.device) if parts.policy is not None and parts.policy.needs_times else None,
            num_prefixes=num_prefixes,
            grammars=lambda: self.grammars,
        )

    @property
    def adapter(self) -> Adapter | None:
        """What lets the drafter learn while it serves, where it does."""
        return self.parts.observer if isinstance(self.parts.observer, Adapter) else None

    @functools.cached_property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars for this tokenizer."""
        return GrammarCompiler(self.tokenizer, self.target.info.vocab_size)

    def constraint(self, settings: GenerationSettings) -> GrammarConstraint | None:
        """What holds an answer with these settings to its grammar, from the beginning; None where there is none."""
        if settings.grammar is None:
            return None
        return self.grammars.constraint(settings.grammar, settings.ends(self.target.info.eos_token_ids))

    @property
    def target(self) -> Target:
        return self.parts.target

    @property
    def drafter(self) -> Drafter | None:
        return self.parts.drafter

    def encode(self, prompt: str | list[dict[str, str]], raw: bool = False) -> list[int]:
        """Token ids of a conversation, or of one user turn; `raw` text goes without the chat template.

        Raises:
            InputError: a raw conversation, or a chat with a tokenizer that has no template.
        """
        if raw or (isinstance(prompt, str) and self.tokenizer.chat_template is None):
            if not isinstance(prompt, str):
                raise InputError("raw prompts are plain text, but a conversation came; pass a string or raw=False.")
            return list(self.tokenizer(prompt)["input_ids"])
        if self.tokenizer.chat_template is None:
            raise InputError("this tokenizer has no chat template for a conversation; pass plain text instead.")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        asked = {} if self.thinking is None else {THINKING: self.thinking}
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **asked)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def submit(self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None) -> Request:
        """Queue a prompt on the engine."""
        settings = settings or GenerationSettings()
        return self.engine.submit(self.encode(prompt, settings.raw), settings)

    def stream(self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None) -> Iterator[Piece]:
        """The answer as it comes; the last piece carries the finish reason and the statistics."""
        return self.engine.stream(self.submit(prompt, settings))

    def generate(self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None) -> Completion:
        """The whole answer."""
        request = self.submit(prompt, settings)
        return complete(list(self.engine.stream(request)))

    def samples(
        self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None, n: int = 1
    ) -> list[Completion]:
        """Several answers to one prompt, decoded together: sample i has the i-th seed that follows from the request's.

        The first one is what `generate` gives.

        Raises:
            InputError: fewer than one sample, or more than MAX_SAMPLES.
        """
        if not 1 <= n <= MAX_SAMPLES:
            raise InputError(f"n is {n}, but must be within 1 to {MAX_SAMPLES}.")
        settings = settings or GenerationSettings()
        requests = [self.submit(prompt, replace(settings, seed=sample_seed(settings.seed, i))) for i in range(n)]
        try:
            self.engine.run()
        finally:
            for request in requests:
                self.engine.cancel(request)
        return [complete(list(request.pieces)) for request in requests]
