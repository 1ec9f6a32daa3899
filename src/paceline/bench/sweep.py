"""Settings that take several values in one run: sizes of the draft, or what a request asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from paceline.errors import InputError
from paceline.types import GenerationSettings

BLOCK_SIZE, TREE_BUDGET = "block_size", "tree_budget"
SIZES = (BLOCK_SIZE, TREE_BUDGET)
"""What says how much a method drafts; all else is the same for every method."""
_NUMBERS = {"int": int, "float": float}
_OF_THE_RUN = ("target", "drafter", "dtype", "device", "threads")


@dataclass(frozen=True)
class Sweep:
    """A setting of `GenerationSettings`, and the values that it takes in turn."""

    name: str
    values: tuple[float, ...]


def parse_sweeps(texts: Sequence[str]) -> list[Sweep]:
    """`NAME=V1,V2,...` each; `requests` checks what is asked of requests, which depends on the other settings.

    Raises:
        InputError: a setting that there is none of or that cannot be swept, a value that it cannot take, or one twice.
    """
    sweeps = [_parse(text) for text in texts]
    names = [sweep.name for sweep in sweeps]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--sweep names {name} twice; name all its values in one.")
    return sweeps


def _parse(text: str) -> Sweep:
    name, mark, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if name in _OF_THE_RUN:
        raise InputError(f"--sweep cannot change {name}, which a run has one of; run once for each.")
    kinds = numbers_of_a_request()
    if name not in kinds or not mark:
        raise InputError(
            f"--sweep is {text!r}, but must be NAME=VALUE,VALUE,... with one of the names {', '.join(sorted(kinds))}."
        )
    try:
        values = tuple(kinds[name](value) for value in listed.split(","))
    except ValueError:
        kind = "whole numbers" if kinds[name] is int else "numbers"
        raise InputError(f"--sweep is {text!r}, but the values of {name} must be {kind}, such as {name}=1,2.") from None
    if any(value != int(float(value)) for value in values if isinstance(value, int)):
        raise InputError(f"--sweep names a value of {name} with more digits than can be told apart; name smaller ones.")
    if len(set(values)) < len(values):
        raise InputError(f"--sweep names a value of {name} twice; name each once.")
    for value in values if name in SIZES else ():
        asked: dict[str, Any] = {name: value}
        GenerationSettings(**asked)
    return Sweep(name, values)


def numbers_of_a_request() -> dict[str, type]:
    """Settings of a request that are numbers, with what reads them."""
    kinds = {field.name: str(field.type).removesuffix(" | None") for field in fields(GenerationSettings)}
    return {name: _NUMBERS[kind] for name, kind in kinds.items() if kind in _NUMBERS and name != "logprobs"}


def requests(base: GenerationSettings, sweeps: Sequence[Sweep]) -> list[tuple[GenerationSettings, dict[str, float]]]:
    """What is asked in turn, and how a reader knows one from the other: temperature, max_tokens, and what is swept.

    Raises:
        InputError: a value that a setting cannot take beside the others.
    """
    asking = [sweep for sweep in sweeps if sweep.name not in SIZES]
    found = []
    for values in product(*(sweep.values for sweep in asking)):
        swept: dict[str, Any] = dict(zip((sweep.name for sweep in asking), values, strict=True))
        settings = replace(base, **swept)
        always = {"temperature": float(settings.temperature), "max_tokens": float(settings.max_tokens)}
        found.append((settings, always | {name: float(value) for name, value in swept.items()}))
    return found
