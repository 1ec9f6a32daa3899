"""Folders that a killed command goes on with: their settings, written whole, and one process in each at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.errors import CheckpointError, InputError

RECORDING = "settings.json"
"""How the files of a folder were made; it lies beside them."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Nobody else works in this folder meanwhile; a process that dies frees it.

    Raises InputError where another process is at work in it.
    """
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(
            f"another process is at work in {folder}; wait for it to end, or give another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


def check_settings(folder: Path, now: dict[str, Any], before: dict[str, Any], may_change: frozenset[str]) -> None:
    """Refuse to go on in a folder that was begun with other settings, naming the first that differs."""
    differing = [name for name in now if name not in may_change and now[name] != before.get(name)]
    if differing:
        name = differing[0]
        raise InputError(
            f"{folder} was begun with {name} = {before.get(name)} but {now[name]} was asked for; "
            "repeat its settings to resume it, or give another folder"
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that a run or a recording left behind.

    Raises CheckpointError where it is none.
    """
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); give another folder.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds {type(found).__name__}, but must hold a JSON object; give another folder.")
    return found


def as_plain(config: Any) -> dict[str, Any]:
    """The settings as JSON has them."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    return plain
