"""What a way of answering is, and Hugging Face's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

import torch
from transformers import GenerationConfig

from paceline.types import GenerationSettings, Statistics

PLAIN, HF = "plain", "hf"
"""Decoding without a drafter, which speed-ups are over, and Hugging Face's own, which it should not be slower than."""


@dataclass(frozen=True)
class Answer:
    """One answer: its tokens, the wall-clock seconds from prompt to last token, and the loop's counts."""

    tokens: tuple[int, ...]
    seconds: float
    statistics: Statistics | None


class Described(Protocol):
    """What a reader needs to know of a method."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def family(self) -> str: ...
    @property
    def sizes(self) -> Mapping[str, int]: ...


class Method(ABC):
    """A way of answering, by name.

    Methods of one `family` differ in their plan only: `policy` names the one that it runs under, if it was asked for,
    `sizes` are those that were asked for in a sweep.
    """

    name: str
    settings: dict[str, Any]
    policy: str = ""
    sizes: Mapping[str, int] = MappingProxyType({})

    @property
    def family(self) -> str:
        return self.name

    @abstractmethod
    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        """Answer one prompt alone (batch one)."""


class HuggingFaceMethod(Method):
    """Greedy `generate` of the unchanged Hugging Face model: the outside reference."""

    name = HF

    def __init__(self, model: Any) -> None:
        self.model = model
        self.settings = {"implementation": "transformers generate"}

    @torch.inference_mode()
    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        started = perf_counter()
        tokens = self._generate(prompt, settings)
        return Answer(tokens, perf_counter() - started, None)

    def _generate(self, prompt: list[int], settings: GenerationSettings, **asked: Any) -> tuple[int, ...]:
        ids = torch.tensor([prompt], device=self.model.device)
        config = self._generation(settings.max_tokens)
        output = self.model.generate(ids, generation_config=config, attention_mask=torch.ones_like(ids), **asked)
        return tuple(output[0, len(prompt) :].tolist())

    def _generation(self, max_tokens: int) -> GenerationConfig:
        """Greedy and nothing else: penalties that the checkpoint would add are not what is compared."""
        own = self.model.generation_config
        return GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
        )
