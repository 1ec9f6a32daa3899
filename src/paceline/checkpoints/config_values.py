"""Values of a `config.json`, checked for their kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError


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
