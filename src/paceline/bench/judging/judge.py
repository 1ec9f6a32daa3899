"""One judge for a bench: which prompts can be judged, and by what."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.bench.judging.answers import is_same_result
from paceline.bench.judging.programs import passes_tests
from paceline.errors import InputError
from paceline.prompt_sets import Reference
from paceline.prompts import Prompt

Kind = Literal["answers", "programs"]


@dataclass(frozen=True)
class Judge:
    """Judges the kinds that it was asked to judge, and no other: programs run only where that was said."""

    kinds: Sequence[Kind]

    def __call__(self, prompt: Prompt, text: str) -> bool | None:
        """Whether the answer is right; None for a prompt without a reference of these kinds."""
        reference = prompt.reference
        if reference is None:
            return None
        if reference.answer and "answers" in self.kinds:
            return is_same_result(text, reference.answer)
        if reference.tests and "programs" in self.kinds:
            return passes_tests(text, reference)
        return None


def check_judging(kinds: Sequence[Kind], prompts: Sequence[Prompt]) -> None:
    """Refuse before the work what could judge nothing.

    Raises:
        InputError: no prompt has a reference of a kind that was asked for, or a package is missing.
    """
    there: dict[Kind, Callable[[Prompt], bool]] = {
        "answers": lambda prompt: bool(prompt.reference and prompt.reference.answer),
        "programs": lambda prompt: bool(prompt.reference and prompt.reference.tests),
    }
    for kind in kinds:
        if not any(map(there[kind], prompts)):
            raise InputError(
                f"--judge {kind} came, but no prompt has a reference for that; use sets that have (gsm8k, math500, "
                'aime24, aime25; humaneval, mbpp), or files whose lines have a "reference".'
            )
    if "answers" in kinds and importlib.util.find_spec("math_verify") is None:
        raise InputError("--judge answers needs the package math-verify; pip install 'paceline[judge]'.")


def working_judge(kinds: Sequence[Kind]) -> Judge:
    """A judge, once it has found right what is right: one that cannot work would call every answer wrong.

    Raises:
        InputError: it cannot work here.
    """
    judge = Judge(kinds)
    known = {
        "answers": (Prompt("", "", "", reference=Reference("72")), "It is 72."),
        "programs": (Prompt("", "", "", reference=Reference(tests="assert f() == 1")), "def f():\n    return 1"),
    }
    for kind in kinds:
        if not judge(*known[kind]):
            raise InputError(
                f"--judge {kind} does not work here: it finds a right answer wrong (are processes, or their memory, "
                "limited by the system?); leave it out."
            )
    return judge
