"""Methods at several sizes of their drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from paceline.bench.method import Answer, Method
from paceline.bench.sweep import Sweep
from paceline.types import GenerationSettings


class SizedMethod(Method):
    """A method that is asked for sizes of its own: `ddtree block_size=4 tree_budget=8`."""

    def __init__(self, method: Method, sizes: Mapping[str, int]):
        self.method, self.sizes = method, dict(sizes)
        self.name = " ".join([method.name, *(f"{name}={value}" for name, value in self.sizes.items())])
        self.settings = {**method.settings, **self.sizes}

    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        asked: dict[str, Any] = dict(self.sizes)
        return self.method.answer(prompt, replace(settings, **asked))


def sized(method: Method, uses: Sequence[str], sweeps: Sequence[Sweep]) -> list[Method]:
    """The method at every combination of the swept sizes that it uses; itself where it uses none."""
    own = [sweep for sweep in sweeps if sweep.name in uses]
    if not own:
        return [method]
    names = [sweep.name for sweep in own]
    return [
        SizedMethod(method, dict(zip(names, map(int, values), strict=True)))
        for values in product(*(sweep.values for sweep in own))
    ]
