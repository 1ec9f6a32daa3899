"""The lines of a results file as they are read: every value of the type and in the range that a bench writes."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.bench.measurement import Measurement
from paceline.bench.method import Answer
from paceline.bench.sweep import BLOCK_SIZE, TREE_BUDGET, numbers_of_a_request
from paceline.near_ties import Divergence
from paceline.prompts import Prompt
from paceline.types import Statistics

FORMAT = 1
_NAMES = "^({})$".format("|".join(sorted(numbers_of_a_request())))
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Positive = Annotated[int, Field(ge=1, le=2**53)]
_Amount = Annotated[float, Field(ge=0.0, le=1e12)]
_Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class MethodRow(_Row):
    """A method, as the head has it; what it was swept at is among its settings."""

    name: str
    settings: dict[str, Any]
    family: str
    policy: str
    sizes: dict[str, _Positive]

    @model_validator(mode="after")
    def _sizes_are_settings(self) -> MethodRow:
        for name, size in self.sizes.items():
            if name not in (BLOCK_SIZE, TREE_BUDGET) or self.settings.get(name) != size:
                raise ValueError(f"its {name} of {size} is not among its settings")
        if type(self.settings.get(BLOCK_SIZE, 0)) is not int:
            raise ValueError(f"{BLOCK_SIZE} is no whole number")
        return self


class _Provenance(BaseModel):
    """What runs are compared by, and what every table says, must be there."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    target: str
    target_digest: str
    dtype: str
    batch: int
    accelerator: str
    processor: str
    cpu_capability: str
    threads: int
    torch: str
    transformers: str
    chat_template_sha256: str
    thinking_mode: str


class _Settings(BaseModel):
    """What a resumed run compares with its own; the prompts are also counted."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    prompts: list[Any]


class HeadRow(_Row):
    """The first line: how the file was made."""

    format: _Count
    settings: _Settings
    provenance: _Provenance
    methods: list[MethodRow]

    @model_validator(mode="after")
    def _methods_are_told_apart(self) -> HeadRow:
        _each_once([method.name for method in self.methods], "method")
        return self


class _StatisticsRow(_Row):
    prompt_tokens: _Count
    cached_tokens: _Count
    tokens: _Count
    rounds: _Count
    drafted: _Count
    accepted: _Count
    block_sizes: dict[_Count, _Count]
    accepted_by_position: list[_Count]
    stage_ms: dict[str, _Amount]
    drafter_calls: _Count
    predict_ms: _Amount
    prefill_s: _Amount
    decode_s: _Amount


class _DivergenceRow(_Row):
    position: _Count
    gap: Annotated[float, Field(ge=0.0, allow_inf_nan=True)]
    bound: Annotated[float, Field(ge=0.0, allow_inf_nan=True)]


class AnswerRow(_Row):
    """One measured answer; the prompt is there without its words."""

    method: str
    set: str
    id: str
    turn: _Positive
    asked: dict[Annotated[str, Field(pattern=_NAMES)], float]
    prompt_tokens: _Count
    tokens: Annotated[list[_Count], Field(min_length=1)]
    all_seconds: Annotated[list[_Seconds], Field(min_length=1)]
    statistics: _StatisticsRow | None
    divergence: _DivergenceRow | None
    is_right: bool | None
    limit: _Positive | None

    def measurement(self) -> Measurement:
        """The same as benches and reports have it."""
        counted = None if self.statistics is None else Statistics(**self.statistics.model_dump())
        return Measurement(
            method=self.method,
            prompt=Prompt(self.set, self.id, ""),
            prompt_tokens=self.prompt_tokens,
            answer=Answer(tuple(self.tokens), self.all_seconds[0], counted),
            all_seconds=tuple(self.all_seconds),
            turn=self.turn,
            asked=dict(self.asked),
            divergence=None if self.divergence is None else Divergence(**self.divergence.model_dump()),
            is_right=self.is_right,
            limit=self.limit,
        )


class PromptRow(_Row):
    """What was measured on one prompt."""

    number: _Count
    answers: Annotated[list[AnswerRow], Field(min_length=1)]

    def measurements(self) -> list[Measurement]:
        """In the order of the line.

        Raises:
            ValueError: two answers of one method to the same request.
        """
        found = [answer.measurement() for answer in self.answers]
        _each_once([(x.method, x.place, x.request) for x in found], "answer")
        return found


def in_one_sentence(error: ValueError) -> str:
    """The first thing that is wrong with a line, and where."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _each_once(names: list[Any], what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"it has the {what} {twice[0]!r} twice")
