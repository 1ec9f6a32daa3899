"""What can be compared: each method answers a prompt and says how long it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Any

from paceline.adaptation.settings import AdaptationSettings
from paceline.bench.hf_dflash import HuggingFaceDFlashMethod
from paceline.bench.method import HF, Answer, HuggingFaceMethod, Method
from paceline.bench.sweep import BLOCK_SIZE, SIZES
from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.files import few
from paceline.decode import Parts
from paceline.device_clock import device_clock
from paceline.drafter_loading import load_drafter
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.embedded import embedded_drafter, has_embedded_drafter
from paceline.engine import Engine
from paceline.errors import InputError
from paceline.loading import load_policy, make_adapter, make_parts
from paceline.sampled_acceptance import block, reject
from paceline.sources import NO_DRAFTER, PROMPT_LOOKUP, checkpoint_digest, drafter_path
from paceline.text_model import Model
from paceline.types import GenerationSettings


class EngineMethod(Method):
    """Any parts behind paceline's engine; plain decoding is an engine without a drafter."""

    def __init__(self, name: str, engine: Engine, settings: dict[str, Any], policy: str = ""):
        self._family, self.policy = name, policy
        self.name = f"{name}+{policy}" if policy else name
        self.engine, self.settings = engine, settings

    @property
    def family(self) -> str:
        return self._family

    def answer(self, prompt: list[int], settings: GenerationSettings) -> Answer:
        started = perf_counter()
        request = self.engine.submit(prompt, settings)
        self.engine.run()
        return Answer(tuple(request.tokens), perf_counter() - started, request.statistics)


#: Hugging Face's own DFlash generation.
HF_DFLASH = "hf-dflash"
#: How the names of methods end that learn while they serve; the one that does not is named without it.
LEARNING = "-adapt"
#: ddtree without knowledge of the sampling noise.
UNSHARED = "ddtree_unshared"
#: dflash with a chain drawn from q, and the rule that accepts it. Their texts are other samples of the same p.
SAMPLED = {"dflash_reject": reject, "dflash_block": block}
#: Methods that draft with a network: the dialect of its checkpoint, and how its trees grow.
_NETWORK_METHODS = {
    "dflash": (Dialect.Z_LAB, "chain"),
    "ddtree": (Dialect.Z_LAB, "best_first"),
    "mixture": (Dialect.Z_LAB, "best_first"),
    UNSHARED: (Dialect.Z_LAB, "best_first"),
    "specblock": (Dialect.SPECBLOCK, "best_first"),
    "specblock-static": (Dialect.SPECBLOCK, "top_k"),
    "specblock-adapt": (Dialect.SPECBLOCK, "best_first"),
    "ddtree-adapt": (Dialect.Z_LAB, "best_first"),
    "eagle3": (Dialect.EAGLE3, "best_first"),
    "eagle3-static": (Dialect.EAGLE3, "top_k"),
    "eagle3-adapt": (Dialect.EAGLE3, "best_first"),
    "mixture-adapt": (Dialect.Z_LAB, "best_first"),
    HF_DFLASH: (Dialect.Z_LAB, "chain"),
    "heads": (Dialect.HEADS, "best_first"),
    "heads-static": (Dialect.HEADS, "top_k"),
    "small-model": (Dialect.CAUSAL_LM, "chain"),
    "small-model-tree": (Dialect.CAUSAL_LM, "best_first"),
} | dict.fromkeys(SAMPLED, (Dialect.Z_LAB, "chain"))
_KINDS = {
    Dialect.Z_LAB: "dflash",
    Dialect.SPECBLOCK: "specblock",
    Dialect.EAGLE3: "eagle3",
    Dialect.HEADS: "heads",
    Dialect.CAUSAL_LM: "small language model",
}
#: Methods whose trees a policy can size.
GROWING = frozenset(name for name, (_, growth) in _NETWORK_METHODS.items() if growth != "chain")


def sizes_used(name: str) -> tuple[str, ...]:
    """The sizes of its drafts that a method, by its family's name, can be asked for."""
    if name.endswith(LEARNING):
        return ()
    if name in GROWING:
        return SIZES
    return (BLOCK_SIZE,) if name in _NETWORK_METHODS or name == PROMPT_LOOKUP else ()


@dataclass(frozen=True)
class Drafting:
    """How the drafted methods draft: drafters by name (each for the methods of its dialect; those without one take the
    embedded one), sizes (None: the drafter's own), the policies, by name, under which tree-growing methods are run
    beside the fixed one, and the queries that methods which learn may expect."""

    drafters: tuple[str, ...] = ()
    tree_budget: int | None = None
    block_size: int | None = None
    policies: tuple[str, ...] = ()
    num_queries: int | None = None

    def by_dialect(self) -> dict[Dialect, str]:
        """The drafters that were named.

        Raises:
            InputError: two of one dialect, or a name that is no draft network.
        """
        found: dict[Dialect, str] = {}
        for name in self.drafters:
            if name in (PROMPT_LOOKUP, NO_DRAFTER):
                raise InputError(f"{name!r} was given as a drafter, but is none with a network; name a folder.")
            dialect = dialect_of(drafter_path(name))
            if dialect in found:
                raise InputError(
                    f"{found[dialect]!r} and {name!r} are drafters of one kind; name one of each kind at most."
                )
            found[dialect] = name
        return found


def build_methods(
    names: Sequence[str],
    model: Model,
    hugging_face: Any,
    drafting: Drafting,
    pair: Callable[[str | None], dict[str, str]],
) -> list[Method]:
    """The methods by name, on one target; a tree-growing one again for each policy, as `name+policy`.

    `hugging_face` is the unchanged model for `hf` and `hf-dflash`, `pair` tells the digests of the target and a drafter
    by name.

    Raises:
        InputError: a method that needs a drafter where none was given, or a drafter that no method needs.
    """
    methods: list[Method] = []
    named = drafting.by_dialect()
    digest = cache(_digest)
    _check_used(named, names)
    for name in names:
        if name == HF:
            methods.append(HuggingFaceMethod(hugging_face))
            continue
        drafter = _drafter_name(name, model, named)
        if name == HF_DFLASH:
            methods.append(_hugging_face_dflash(model, hugging_face, drafter, drafting.block_size))
            methods[-1].settings |= digest(drafter)
            continue
        parts = _parts(name, model, drafter, drafting)
        methods.append(_engine_method(name, model, parts, digest(drafter)))
        for spec in drafting.policies if name in GROWING else ():
            digests = partial(pair, drafter)
            if parts.observer is not None:  # what learns is nobody else's
                parts = _parts(name, model, drafter, drafting)
            assert parts.drafter is not None, "it grows trees"
            policy = load_policy(spec, model.target, parts.drafter, drafting.tree_budget, digests)
            methods.append(_engine_method(name, model, replace(parts, policy=policy), digest(drafter), spec))
    return methods


def _hugging_face_dflash(model: Model, hugging_face: Any, drafter: str | None, block_size: int | None) -> Method:
    assert drafter is not None, "its dialect asks for one"
    part = load_drafter(drafter, model.target, "chain")
    assert isinstance(part, DFlashDrafter), "of its dialect"
    return HuggingFaceDFlashMethod(hugging_face, part, block_size)


def _check_used(named: Mapping[Dialect, str], names: Sequence[str]) -> None:
    used = {_NETWORK_METHODS[name][0] for name in names if name in _NETWORK_METHODS}
    for dialect, drafter in named.items():
        if dialect not in used:
            fitting = few([name for name, (its, _) in _NETWORK_METHODS.items() if its is dialect])
            raise InputError(
                f"{drafter!r} is a {_KINDS[dialect]} drafter, which none of the methods uses; add one of {fitting}."
            )


def _drafter_name(name: str, model: Model, named: Mapping[Dialect, str]) -> str | None:
    """The drafter of a method; None where it has none."""
    if name == PROMPT_LOOKUP:
        return PROMPT_LOOKUP
    if name not in _NETWORK_METHODS:
        return None
    dialect = _NETWORK_METHODS[name][0]
    kind = _KINDS[dialect]
    if dialect not in named and not (model.is_embedded and has_embedded_drafter(kind)):
        raise InputError(f"method {name} needs a {kind} --drafter for the target {model.target.info.name}.")
    return named.get(dialect) or str(embedded_drafter(kind))


def _parts(name: str, model: Model, drafter: str | None, drafting: Drafting) -> Parts:
    part = None if drafter is None else _drafter(name, model, drafter)
    budget = drafting.tree_budget if name in GROWING else None
    parts = make_parts(model.target, part, drafting.block_size, budget)
    if drafter is not None and name.endswith(LEARNING):
        expecting = AdaptationSettings(expected_queries=drafting.num_queries)
        parts = replace(parts, observer=make_adapter(parts, drafter, expecting))
    return replace(parts, rule=SAMPLED.get(name))


def _drafter(name: str, model: Model, drafter: str) -> Drafter:
    growth = _NETWORK_METHODS[name][1] if name in _NETWORK_METHODS else "best_first"
    part = load_drafter(drafter, model.target, growth, tokenizer=model.tokenizer)
    assert part is not None, "a drafter was named"
    if not isinstance(part, DFlashDrafter):
        return part
    if name == UNSHARED:
        return DFlashDrafter(part.network, part.growth, shared_noise=False)
    if name in SAMPLED:
        return DFlashDrafter(part.network, part.growth, samples=True)
    return MixtureDrafter(part, PromptLookupDrafter()) if name.removesuffix(LEARNING) == "mixture" else part


def _digest(drafter: str | None) -> dict[str, str]:
    """What identifies the network, among a method's settings."""
    if drafter in (None, PROMPT_LOOKUP):
        return {}
    return {"drafter_digest": checkpoint_digest(drafter_path(str(drafter)))}


def _engine_method(name: str, model: Model, parts: Parts, digest: dict[str, str], policy: str = "") -> EngineMethod:
    clock = device_clock(model.target.info.device)
    engine = Engine(parts, max_batch=1, clock=clock, grammars=lambda: model.grammars)
    return EngineMethod(name, engine, _parts_settings(parts) | digest, policy)


def _parts_settings(parts: Parts) -> dict[str, Any]:
    """What a reader needs beside the method's numbers."""
    if parts.policy is None or parts.drafter is None:
        return {}
    rule = {"rule": parts.rule.__name__} if parts.rule is not None else {}
    return {"drafter": parts.drafter.name, **parts.policy.describe(), **rule}
