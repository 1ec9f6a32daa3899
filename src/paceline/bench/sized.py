"""Methods at several sizes of their drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from paceline.bench.method import Answer, Method
from paceline.bench.sweep import BLOCK_SIZE, TREE_BUDGET, Sweep
from paceline.types import GenerationSettings


class SizedMethod(Method):
    """A method that is asked for sizes of its own: `ddtree block_size=4 tree_budget=8`.

    A block that was asked for without a number of nodes gets as many as a whole chain of it needs, at least.
    """

    def __init__(self, method: Method, sizes: Mapping[str, int], is_chain: bool):
        self.method, self.sizes = method, dict(sizes)
        self.name = " ".join([method.name, *(f"{name}={value}" for name, value in self.sizes.items())])
        self._asked: dict[str, Any] = dict(sizes)
        if BLOCK_SIZE in sizes and TREE_BUDGET not in sizes:
            whole = sizes[BLOCK_SIZE] - 1
            self._asked[TREE_BUDGET] = whole if is_chain else max(whole, method.settings.get(TREE_BUDGET, 0))
        self.settings = {**method.settings, **self._asked}

    @property
    def family(self) -> str:
        return self.method.family

    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        return self.method.answer(prompt, replace(settings, **self._asked))


def sized(method: Method, uses: Sequence[str], sweeps: Sequence[Sweep]) -> list[Method]:
    """The method at every combination of the swept sizes that it uses; itself where it uses none."""
    own = [sweep for sweep in sweeps if sweep.name in uses]
    if not own:
        return [method]
    names = [sweep.name for sweep in own]
    return [
        SizedMethod(method, dict(zip(names, map(int, values), strict=True)), is_chain=TREE_BUDGET not in uses)
        for values in product(*(sweep.values for sweep in own))
    ]
