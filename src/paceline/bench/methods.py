"""What can be compared: each method answers a prompt and says how long it took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig

from paceline.decode import Parts
from paceline.device_clock import device_clock
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.embedded import embedded_drafter
from paceline.engine import Engine
from paceline.errors import InputError
from paceline.loading import load_drafter, load_policy, make_parts
from paceline.sampled_acceptance import block, reject
from paceline.sources import NO_DRAFTER, PROMPT_LOOKUP
from paceline.text_model import Model
from paceline.types import GenerationSettings, Statistics


@dataclass(frozen=True)
class Answer:
    """One answer: its tokens, the wall-clock seconds from prompt to last token, and the loop's counts."""

    tokens: tuple[int, ...]
    seconds: float
    statistics: Statistics | None


class Method(ABC):
    """A way of answering, by name."""

    name: str
    settings: dict[str, Any]

    @abstractmethod
    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        """Answer one prompt alone (batch one)."""


class EngineMethod(Method):
    """Any parts behind paceline's engine; plain decoding is an engine without a drafter."""

    def __init__(self, name: str, engine: Engine, settings: dict[str, Any]):
        self.name, self.engine, self.settings = name, engine, settings

    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        started = perf_counter()
        request = self.engine.submit(prompt, settings)
        self.engine.run()
        return Answer(tuple(request.tokens), perf_counter() - started, request.statistics)


class HuggingFaceMethod(Method):
    """Greedy `generate` of the unchanged Hugging Face model: the outside reference."""

    name = "hf"

    def __init__(self, model: Any):
        self.model = model
        self.settings = {"implementation": "transformers generate"}

    @torch.inference_mode()
    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        started = perf_counter()
        ids = torch.tensor([prompt], device=self.model.device)
        output = self.model.generate(
            ids, generation_config=self._greedy(settings.max_tokens), attention_mask=torch.ones_like(ids)
        )
        return Answer(tuple(output[0, len(prompt) :].tolist()), perf_counter() - started, None)

    def _greedy(self, max_tokens: int) -> GenerationConfig:
        """Greedy and nothing else: penalties that the checkpoint would add are not what is compared."""
        own = self.model.generation_config
        return GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
        )


#: ddtree without knowledge of the sampling noise.
UNSHARED = "ddtree_unshared"
#: dflash with a chain drawn from q, and the rule that accepts it. Their texts are other samples of the same p.
SAMPLED = {"dflash_reject": reject, "dflash_block": block}
#: Methods that draft with a block-diffusion network, and the growth that makes each.
_BLOCK_METHODS = {
    "dflash": "chain",
    "ddtree": "best_first",
    "mixture": "best_first",
    UNSHARED: "best_first",
} | dict.fromkeys(SAMPLED, "chain")
#: Methods whose trees a policy can size.
GROWING = frozenset(name for name, growth in _BLOCK_METHODS.items() if growth == "best_first")


@dataclass(frozen=True)
class Drafting:
    """How the drafted methods draft: drafter by name (None: the embedded one), sizes (None: the drafter's own), and
    the policies, by name, under which tree-growing methods are run beside the fixed one."""

    drafter: str | None = None
    tree_budget: int | None = None
    block_size: int | None = None
    policies: tuple[str, ...] = ()


def build_methods(
    names: Sequence[str], model: Model, hugging_face: Any, drafting: Drafting, pair: Callable[[], dict[str, str]]
) -> list[Method]:
    """The methods by name, on one target; a tree-growing one again for each policy, as `name+policy`.

    `hugging_face` is the unchanged model for `hf`, `pair` tells the digests of target and drafter.

    Raises:
        InputError: a method that needs a drafter where none was given, policies without a method that grows trees.
    """
    methods: list[Method] = []
    for name in names:
        if name == "hf":
            methods.append(HuggingFaceMethod(hugging_face))
            continue
        parts = _parts(name, model, drafting)
        methods.append(_engine_method(name, model, parts))
        for spec in drafting.policies if name in GROWING else ():
            assert parts.drafter is not None, "it grows trees"
            policy = load_policy(spec, model.target, parts.drafter, drafting.tree_budget, pair)
            methods.append(_engine_method(f"{name}+{spec}", model, replace(parts, policy=policy)))
    return methods


def _parts(name: str, model: Model, drafting: Drafting) -> Parts:
    part = _drafter(name, model, drafting.drafter)
    budget = drafting.tree_budget if _BLOCK_METHODS.get(name) == "best_first" else None
    parts = make_parts(model.target, part, drafting.block_size, budget)
    return replace(parts, rule=SAMPLED.get(name))


def _drafter(name: str, model: Model, drafter: str | None) -> Drafter | None:
    if name == PROMPT_LOOKUP:
        return load_drafter(PROMPT_LOOKUP, model.target)
    if name not in _BLOCK_METHODS:
        return None
    if drafter is None and not model.is_embedded:
        raise InputError(f"method {name} needs --drafter for the target {model.target.info.name}.")
    if drafter in (PROMPT_LOOKUP, NO_DRAFTER):
        raise InputError(f"method {name} needs a draft network, but {drafter!r} was given; name its folder.")
    part = load_drafter(drafter or str(embedded_drafter()), model.target, _BLOCK_METHODS[name])
    assert isinstance(part, DFlashDrafter), "a network was loaded"
    if name == UNSHARED:
        return DFlashDrafter(part.network, part.growth, shared_noise=False)
    if name in SAMPLED:
        return DFlashDrafter(part.network, part.growth, samples=True)
    return MixtureDrafter(part, PromptLookupDrafter()) if name == "mixture" else part


def _engine_method(name: str, model: Model, parts: Parts) -> EngineMethod:
    clock = device_clock(model.target.info.device)
    engine = Engine(parts, max_batch=1, clock=clock, grammars=lambda: model.grammars)
    return EngineMethod(name, engine, _parts_settings(parts))


def _parts_settings(parts: Parts) -> dict[str, Any]:
    """What a reader needs beside the method's numbers."""
    if parts.policy is None or parts.drafter is None:
        return {}
    rule = {"rule": parts.rule.__name__} if parts.rule is not None else {}
    return {"drafter": parts.drafter.name, **parts.policy.describe(), **rule}
