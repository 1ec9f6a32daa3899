"""The measurement itself: every method answers a prompt before the next prompt comes, in rotating order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from paceline.bench.method import Answer, Method
from paceline.metrics import tokens_per_s
from paceline.prompts import Prompt
from paceline.types import GenerationSettings

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Measurement:
    """One method on one prompt: the first repeat's answer, and the seconds of every repeat."""

    method: str
    prompt: Prompt
    prompt_tokens: int
    answer: Answer
    all_seconds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median of the repeats."""
        return median(self.all_seconds)

    @property
    def seconds_per_token(self) -> float:
        return 1.0 / tokens_per_s(len(self.answer.tokens), self.seconds)


def measure(
    methods: Sequence[Method],
    prompts: Sequence[tuple[Prompt, list[int]]],
    settings: GenerationSettings,
    repeats: int,
    report: Callable[[Measurement], None],
) -> list[Measurement]:
    """Warm every method up with a short answer, then measure; the order of methods rotates by prompt."""
    short = replace(settings, max_tokens=min(settings.max_tokens, WARM_UP_TOKENS))
    for method in methods:
        method.answer(prompts[0][1], short)
    measurements = []
    for index, (prompt, tokens) in enumerate(prompts):
        turn = index % len(methods)
        answers: dict[str, list[Answer]] = {method.name: [] for method in methods}
        for _ in range(repeats):
            for method in [*methods[turn:], *methods[:turn]]:
                answers[method.name].append(method.answer(tokens, settings))
        for method in methods:
            done = answers[method.name]
            seconds = tuple(answer.seconds for answer in done)
            measurements.append(Measurement(method.name, prompt, len(tokens), done[0], seconds))
            report(measurements[-1])
    return measurements
