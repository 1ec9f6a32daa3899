"""Result files: written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from paceline.errors import InputError


def write_json(path: Path, result: dict[str, Any]) -> None:
    """A JSON object, indented."""
    write_text(path, json.dumps(result, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Text as UTF-8, its ends of lines as they are: into a temporary sibling, which is then renamed. A file that was
    there is replaced at once; who may read it stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(text.encode("utf-8"))
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path | None, flag: str) -> None:
    """Refuse before measuring what could not be written after it; `flag` is where it was given."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or (path.exists() and not path.is_file()):
        raise InputError(f"{flag} {str(path)!r} cannot be written: name a file in a folder that you may write to.")


def check_new_folder(path: Path) -> None:
    """Say before the work that a new folder cannot be made here.

    Raises:
        InputError: something is there already, or no folder can be made there.
    """
    if path.is_symlink() or path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"{path} is there already; name a new folder.")
    check_can_be_made(path)


def check_can_be_made(path: Path) -> None:
    """Say before the work that no folder can be made here.

    Raises:
        InputError: the folder above is none, or not to be written to.
    """
    above = next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.lexists(parent))
    try:
        Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=above)).rmdir()
    except OSError as error:
        raise InputError(
            f"{path} cannot be made: {above} is no folder that you may write to; name another place."
        ) from error


def check_folder(path: Path) -> None:
    """Say before the work that results cannot lie there.

    Raises:
        InputError: a file is in the way, or no folder can be made.
    """
    if (path.exists() or path.is_symlink()) and not path.is_dir():
        raise InputError(f"--out {str(path)!r} is there and is no folder; name a folder.")
    check_can_be_made(path)
