"""The measurement itself: every method answers a prompt before the next prompt comes, in rotating order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.bench.measurement import Measurement
from paceline.bench.method import PLAIN, Answer, Method
from paceline.near_ties import Divergence, find_divergence
from paceline.prompts import Prompt
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.text_model import Model

WARM_UP_TOKENS = 16
_TURN = 0.6180339887
"""Part of a circle from one prompt's beginning to the next one's: the golden section, whose multiples spread evenly."""


@dataclass(frozen=True)
class Bench:
    """Methods on one target, and what each prompt is asked.

    `asked` pairs the settings of a request with what a reader must know of them. The order of methods rotates by the
    number of the prompt, and repeats are interleaved, so that no method has the machine at better times.
    """

    model: Model
    methods: Sequence[Method]
    asked: Sequence[tuple[GenerationSettings, Mapping[str, float]]]
    repeats: int = 1
    judge: Callable[[Prompt, str], bool | None] | None = None

    def warm_up(self, prompt: Prompt) -> None:
        """A short answer by every method to everything that is asked."""
        tokens = self.model.encode(prompt.text)
        for settings, _ in self.asked:
            short = replace(settings, max_tokens=min(settings.max_tokens, WARM_UP_TOKENS), min_tokens=0)
            for method in self.methods:
                method.answer(tokens, short)

    def __call__(self, numbered: tuple[int, Prompt]) -> list[Measurement]:
        """Every method on every turn of a prompt, for everything that is asked."""
        return [x for settings, asked in self.asked for x in self._conversation(*numbered, settings, asked)]

    def _conversation(
        self, number: int, prompt: Prompt, settings: GenerationSettings, asked: Mapping[str, float]
    ) -> list[Measurement]:
        """Later turns follow the first method's answer, whichever method answers them: all read the same. A turn that
        leaves no room for an answer is not asked, nor what follows it."""
        found: list[Measurement] = []
        said: list[dict[str, str]] = []
        room = self.model.target.info.max_context
        can_converse = self.model.tokenizer.chat_template is not None
        for turn, text in enumerate(prompt.turns if can_converse else prompt.turns[:1], start=1):
            said.append({"role": "user", "content": text})
            tokens = self.model.encode(said if can_converse else text)
            if len(tokens) >= room:
                warnings.warn(
                    f"turn {turn} of prompt {prompt.id!r} of {prompt.set_name} is not asked: with what comes before, "
                    f"its {len(tokens)} tokens fill the context of {room}.",
                    stacklevel=2,
                )
                break
            answers = interleaved(self.methods, tokens, settings, self.repeats, number)
            verdicts = self._verdicts(prompt, turn, answers)
            found += [
                Measurement(
                    method=method.name,
                    prompt=prompt,
                    prompt_tokens=len(tokens),
                    answer=done[0],
                    all_seconds=tuple(answer.seconds for answer in done),
                    turn=turn,
                    asked=asked,
                    divergence=self._divergence(method, tokens, answers, done[0], settings),
                    is_right=verdicts.get(done[0].tokens),
                    limit=min(settings.max_tokens, room - len(tokens)),
                )
                for method, done in zip(self.methods, answers, strict=True)
            ]
            said.append({"role": "assistant", "content": self._text(answers[0][0])})
        return found

    def _divergence(
        self,
        method: Method,
        tokens: list[int],
        answers: Sequence[Sequence[Answer]],
        answer: Answer,
        settings: GenerationSettings,
    ) -> Divergence | None:
        """None too where there is no plain text, or another sample of the same distribution was drawn."""
        plain = next((done[0] for m, done in zip(self.methods, answers, strict=True) if m.name == PLAIN), None)
        if plain is None or (settings.temperature > 0.0 and method.settings.get("rule")):
            return None
        constraint = self.model.constraint(settings)
        return find_divergence(self.model.target, tokens, plain.tokens, answer.tokens, settings, constraint)

    def _verdicts(
        self, prompt: Prompt, turn: int, answers: Sequence[Sequence[Answer]]
    ) -> dict[tuple[int, ...], bool | None]:
        """What the judge says of every text; the same of texts that are the same."""
        if self.judge is None or turn > 1:
            return {}
        return {tokens: self.judge(prompt, self._text(answer)) for tokens, answer in
                {done[0].tokens: done[0] for done in answers}.items()}  # fmt: skip

    def _text(self, answer: Answer) -> str:
        return str(self.model.tokenizer.decode(list(answer.tokens), skip_special_tokens=True))


def interleaved(
    methods: Sequence[Method], tokens: list[int], settings: GenerationSettings, repeats: int, number: int
) -> list[list[Answer]]:
    """Every repeat of every method, in the order of `methods`; which one comes first in time turns with `number`, by so
    much that a few prompts already go all the way round."""
    answers: list[list[Answer]] = [[] for _ in methods]
    first = int(number * _TURN % 1 * len(methods))
    order = [(first + i) % len(methods) for i in range(len(methods))]
    for _ in range(repeats):
        for place in order:
            answers[place].append(methods[place].answer(tokens, settings))
    return answers


def measure(
    bench: Bench, prompts: Sequence[Prompt], report: Callable[[Sequence[Measurement]], None]
) -> list[Measurement]:
    """Warm up, then every prompt in its order; `report` sees what each one gave."""
    bench.warm_up(prompts[0])
    found: list[Measurement] = []
    for numbered in enumerate(prompts):
        found += (new := bench(numbered))
        report(new)
    return found
