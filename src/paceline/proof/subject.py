"""What is put to the proof, and what every law measures it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.near_ties import find_divergence
from paceline.plain import plain_decode
from paceline.target.base import Target
from paceline.types import GenerationSettings

#: How far two computations of the same numbers may be apart, as a share of their size.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
#: Types in which every text must be equal; in others two tokens may swap where they nearly tie.
EXACT = (torch.float64, torch.float32)


@dataclass(frozen=True)
class Subject:
    """A target, the ways of drafting for it by name, and prompts as tokens."""

    target: Target
    drafted: Mapping[str, Parts]
    prompts: Sequence[list[int]]
    max_tokens: int

    def __post_init__(self) -> None:
        assert self.drafted and len(self.prompts) >= 2, "nothing to prove"

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.target.info.dtype]

    def settings(self, **changes: object) -> GenerationSettings:
        return GenerationSettings(**{"max_tokens": self.max_tokens, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Finding:
    """Whether a law holds, and what was measured."""

    holds: bool
    measured: str


def distance(found: Tensor, expected: Tensor) -> float:
    """Mean absolute difference, as a share of the mean size of what was expected."""
    found, expected = found.double(), expected.double()
    return float((found - expected).abs().mean() / expected.abs().mean().clamp_min(1e-12))


class Texts:
    """Compares drafted texts with plain decoding's."""

    def __init__(self, subject: Subject):
        self.subject = subject
        self.compared = self.same = self.near_ties = 0
        self.first = ""

    def compare(self, name: str, prompt: list[int], found: list[int], settings: GenerationSettings) -> None:
        target = self.subject.target
        self.compared += 1
        expected = plain_decode(target, prompt, settings)
        divergence = find_divergence(target, prompt, expected, found, settings)
        if divergence is None:
            self.same += 1
        elif divergence.is_near_tie and target.info.dtype not in EXACT:
            self.near_ties += 1
        elif not self.first:
            self.first = f"; {name} first parts at token {divergence.position}, gap {divergence.gap:.3g}"

    def finding(self) -> Finding:
        ties = f", {self.near_ties} part at a near-tie" if self.near_ties else ""
        measured = f"{self.same} of {self.compared} texts equal{ties}{self.first}"
        return Finding(self.same + self.near_ties == self.compared, measured)


def answers(
    parts: Parts, prompts: Sequence[list[int]], settings: Sequence[GenerationSettings], batch: int
) -> list[list[int]]:
    """The tokens of every prompt, decoded up to `batch` at a time."""
    engine = Engine(parts, max_batch=batch)
    requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    return [request.tokens for request in requests]
