"""Checkpoint folders: a `config.json`, and safetensors in one file or in shards with an index.

JSON, safetensors, and PyTorch's own files as far as they hold tensors alone, are read: nothing in a checkpoint can run.
Every kind of damage is a `CheckpointError` of one sentence.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from paceline.errors import CheckpointError
from paceline.tensor_files import save_tensors

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OLDER_WEIGHTS = "pytorch_model.bin"
_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


def expanded(name: str) -> Path:
    """The path that a user wrote, with `~` filled in.

    Raises:
        CheckpointError: a home folder that there is not.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"the path {name!r} cannot be used: {error}.") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a checkpoint folder.

    Raises:
        CheckpointError: there is no such folder or file, or it is not a JSON object.
    """
    if not folder.is_dir():
        came = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder} {came}, but a checkpoint is a folder with {CONFIG} and {WEIGHTS}.")
    return _read_object(folder / CONFIG)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, from one file or from the shards that its index names.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt, or a shard lacks a tensor of the index.
    """
    if (folder / WEIGHTS).exists():
        return _read_tensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        if (folder / OLDER_WEIGHTS).exists():
            return _read_older(folder / OLDER_WEIGHTS)
        raise CheckpointError(f"{folder} has no weights: neither {WEIGHTS} nor {INDEX} is there.")
    shard_of = _shards(folder / INDEX)
    weights: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        if not (folder / shard).exists():
            raise CheckpointError(f"{folder} lacks the shard {shard} that {INDEX} names; download it again.")
        weights.update(_read_tensors(folder / shard))
    absent = sorted(set(shard_of) - set(weights))
    if absent:
        raise CheckpointError(f"{folder / INDEX} names {few(absent)}, but no shard holds it.")
    return weights


@contextmanager
def replacing_folder(destination: Path, must_be_new: bool = False) -> Iterator[Path]:
    """A new folder beside `destination` that takes its place when the block ends without an error.

    Whoever reads `destination` meanwhile sees the old checkpoint; a failure leaves it untouched.

    Raises:
        CheckpointError: `destination` is there and is not a checkpoint folder, so it is not ours to replace; or, where
            it `must_be_new`, it is there by the time it is done.
    """
    destination = destination.absolute()
    if destination.exists() and not _is_replaceable(destination):
        raise CheckpointError(f"{destination} exists and is not a checkpoint folder; choose another place.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        fresh = workplace / "new"
        fresh.mkdir()
        yield fresh
        if must_be_new:
            _move_in(fresh, destination)
        else:
            _swap_in(fresh, destination, workplace / "old")
    finally:
        shutil.rmtree(workplace)


def write_checkpoint(folder: Path, config: Mapping[str, Any], weights: dict[str, Tensor]) -> None:
    """Write `config.json` and `model.safetensors` into an existing folder."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_tensors(folder / WEIGHTS, weights, {"format": "pt"})


def _move_in(fresh: Path, destination: Path) -> None:
    try:
        if not destination.exists():
            fresh.rename(destination)
            return
    except OSError:  # another process was faster
        if not destination.exists():
            raise
    raise CheckpointError(f"{destination} is there already; name a new folder.")


def _swap_in(fresh: Path, destination: Path, old: Path) -> None:
    try:
        if destination.exists():
            if _exchange(fresh, destination):
                return
            destination.rename(old)
        fresh.rename(destination)
    except BaseException:  # Ctrl-C too: whoever reads `destination` must find a checkpoint
        if old.exists() and not destination.exists():
            old.rename(destination)
        raise


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders take each other's place in one step, where the system can (Linux's renameat2): a process that is
    killed then leaves one or the other."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and not rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)


def _is_replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / CONFIG).is_file() or not any(folder.iterdir()))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}, so it is not a checkpoint.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({_one_line(error)}).") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}, but must hold an object.")
    return content


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        size = path.stat().st_size if path.is_file() else 0
        raise CheckpointError(
            f"{path} ({size} bytes) is not a whole safetensors file ({_one_line(error)}); download it again."
        ) from error


def _read_older(path: Path) -> dict[str, Tensor]:
    """The tensors of PyTorch's own format, by its reader that builds nothing else."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling raises many kinds
        raise CheckpointError(f"{path} cannot be read as tensors ({_one_line(error)}).") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(f"{path} holds something else than named tensors.")
    return {str(name): value.contiguous() for name, value in found.items()}


def _shards(index: Path) -> dict[str, str]:
    """Which shard holds each tensor."""
    shard_of = _read_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{index} has no weight_map from tensor names to shards.")
    for shard in shard_of.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index} names the shard {shard!r}, but a shard is a file beside its index.")
    return shard_of


def few(names: list[str]) -> str:
    """The first names of a list, for an error."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
