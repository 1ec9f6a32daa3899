"""Values of a `config.json`, checked for their kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError, InputError, UnsupportedModelError


def check_kinds(values: Mapping[str, Any], path: Path) -> None:
    """Refuse values that are not whole numbers, or for the tapped layers a list of them.

    Raises:
        CheckpointError: a value is of another kind.
    """
    for name, value in values.items():
        whole = value if name == "target_layer_ids" else [value]
        if not isinstance(whole, list) or any(type(item) is not int for item in whole):
            expected = "a list of whole numbers" if name == "target_layer_ids" else "a whole number"
            raise CheckpointError(f"{path} has {name} {value!r} in its config.json, but it must be {expected}.")


def read_object(stored: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    """The object under a key; empty where there is none.

    Raises:
        CheckpointError: something else is there.
    """
    value = stored.get(key) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} has {key} {value!r} in its config.json, but it must be an object.")
    return value


@contextmanager
def read_values(path: Path) -> Iterator[None]:
    """Values that make no network are the checkpoint's fault.

    Raises:
        CheckpointError: in place of the error of whatever refuses them.
    """
    try:
        yield
    except (CheckpointError, UnsupportedModelError):
        raise
    except InputError as error:
        raise CheckpointError(f"{path} has a config.json that cannot be used: {error}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} has a value of a wrong kind in its config.json ({error}).") from error
