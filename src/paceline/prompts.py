"""Prompt sets: JSON Lines of `{"id", "category", "turns": [user turn, ...]}`, with a `reference` where answers can be
judged: `{"answer": ...}` or `{"tests": ..., "stub": ...}`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.errors import InputError, PromptTooLongError
from paceline.prompt_sets import PROMPT_SETS, Reference, fetch


@dataclass(frozen=True)
class Prompt:
    """The user's turns of one conversation: the first, and those that follow its answer."""

    set_name: str
    id: str
    text: str
    later: tuple[str, ...] = ()
    reference: Reference | None = None

    @property
    def turns(self) -> tuple[str, ...]:
        return (self.text, *self.later)


def read_prompts(files: tuple[Path, ...], limit: int | None = None) -> list[Prompt]:
    """The first `limit` prompts of each file, in order; our own small set where no file is given. The name of one of
    the field's sets that is no file here is fetched from the hub.

    Raises:
        InputError: a file that is missing, empty, not UTF-8, or not of this format, with the line's number, or a set
            that cannot be fetched.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}, but must be at least 1.")
    if not files:
        own = resources.files("paceline") / "prompts.jsonl"
        return _parse(own.read_text(encoding="utf-8"), "paceline", "its own prompts")[:limit]
    return [prompt for file in files for prompt in _prompts_of(file, limit)]


def _prompts_of(file: Path, limit: int | None) -> list[Prompt]:
    name = str(file)
    if name in PROMPT_SETS and not file.exists():
        return [
            Prompt(name, str(number), first, tuple(later), reference)
            for number, ((first, *later), reference) in enumerate(fetch(name, limit))
            if all(map(_is_text, (first, *later)))
        ]
    return _parse(_read(file), file.stem, name)[:limit]


def check_length(prompt: Prompt, num_tokens: int, max_context: int) -> None:
    """Refuse a prompt that leaves no room for an answer, by name.

    Raises:
        PromptTooLongError: it fills the target's context.
    """
    if num_tokens >= max_context:
        raise PromptTooLongError(
            f"prompt {prompt.id!r} of {prompt.set_name} has {num_tokens} tokens, but the target has a context of "
            f"{max_context}; leave it out."
        )


def _read(file: Path) -> str:
    if not _is_text(file.stem):
        raise InputError(f"the name of the prompt file {str(file)!r} is not UTF-8; rename it.")
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the prompt file {str(file)!r} is not UTF-8 text ({error.reason}); save it as UTF-8."
        ) from error
    except OSError as error:
        named = (
            f"; sets that have a name are {', '.join(PROMPT_SETS)}"
            if file.name == str(file) and not file.suffix
            else ""
        )
        raise InputError(f"the prompt file {str(file)!r} cannot be read: {error.strerror or error}{named}.") from error


def _is_text(turn: str) -> bool:
    """JSON can escape half a character, which no tokenizer reads."""
    return turn.encode("utf-8", "ignore").decode("utf-8") == turn


def _parse(text: str, set_name: str, source: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt(json.loads(line), set_name, str(number)))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError, ValueError, RecursionError):
            raise InputError(
                f'{source}, line {number} is not of the form {{"turns": ["a user turn", ...]}}, with a "reference" of '
                '{"answer": ...} or {"tests": ..., "stub": ...} where answers are judged.'
            ) from None
    if not prompts:
        raise InputError(f"{source} holds no prompts.")
    return prompts


def _prompt(row: dict[str, Any], set_name: str, number: str) -> Prompt:
    """Raises one of many kinds of error where the row is of another form."""
    turns, reference = row["turns"], row.get("reference")
    if not isinstance(turns, list) or not all(isinstance(turn, str) and turn and _is_text(turn) for turn in turns):
        raise ValueError
    judged = None if reference is None else _reference(**reference)
    name = str(row.get("id", number))
    if not _is_text(name):
        raise ValueError
    return Prompt(set_name, name, turns[0], tuple(turns[1:]), judged)


def _reference(**values: Any) -> Reference:
    reference = Reference(**values)
    if not all(isinstance(value, str) for value in values.values()) or bool(reference.answer) == bool(reference.tests):
        raise ValueError
    return reference
