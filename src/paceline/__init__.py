"""paceline: block drafters propose, a draft tree is verified in one pass, the text stays the same.

>>> from paceline import load
>>> model = load("Qwen/Qwen3-4B", drafter="z-lab/Qwen3-4B-DFlash-b16")     # doctest: +SKIP
>>> for piece in model.stream("How many positive divisors does 196 have?"):  # doctest: +SKIP
...     print(piece.text, end="")

Names are imported when they are first used, so that `import paceline` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.errors import PacelineError
    from paceline.loading import load
    from paceline.text_model import Model
    from paceline.types import Completion, GenerationSettings, Grammar, Piece, Statistics

__version__ = "0.1.0"

__all__ = ["Completion", "GenerationSettings", "Grammar", "Model", "PacelineError", "Piece", "Statistics", "load"]

_HOMES = {
    "load": "paceline.loading",
    "Model": "paceline.text_model",
    "GenerationSettings": "paceline.types",
    "Grammar": "paceline.types",
    "Piece": "paceline.types",
    "Completion": "paceline.types",
    "Statistics": "paceline.types",
    "PacelineError": "paceline.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
