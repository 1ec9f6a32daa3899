"""What identifies a checkpoint: a digest of its weights that is cheap even where they take many gigabytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from paceline.checkpoints.files import read_config
from paceline.errors import CheckpointError

_WHOLE_BYTES = 32 * 2**20
_SAMPLE_BYTES = 512
_OF_DRAFTERS = ("block_size", "mask_token_id", "target_layer_ids", "dflash_config")
_OF_SOME_DRAFTERS = ("diffspec_draft_token_num",)
"""What the same weights may be used with in different ways; the latter where a config.json has it."""


def checkpoint_digest(folder: Path) -> str:
    """Digest of a folder's tensors, their names and shapes included (of small files whole, of large ones both ends of
    every tensor), and of what a drafter's config.json says of its blocks.

    A copy has the same digest, and so has one that another version of a library wrote, with other defaults in its
    config.json. Another checkpoint has another one, unless it differs inside of large tensors or in its config alone.

    Raises:
        CheckpointError: no config.json there, or a weight file that cannot be read.
    """
    config = read_config(folder)
    shape = {name: config.get(name) for name in _OF_DRAFTERS}
    shape |= {name: config[name] for name in _OF_SOME_DRAFTERS if name in config}
    hasher = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            _add_tensors(hasher, path, file)
    for path in sorted(folder.glob("*.bin")):
        with path.open("rb") as file:
            hasher.update(hashlib.file_digest(file, "sha256").digest())
    return hasher.hexdigest()[:16]


def _add_tensors(hasher: hashlib._Hash, path: Path, file: BinaryIO) -> None:
    start = 8 + int.from_bytes(file.read(8), "little")
    size = path.stat().st_size
    try:
        header: dict[str, Any] = json.loads(file.read(min(start, size) - 8))
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items()):
            hasher.update(f"{name} {entry['dtype']} {entry['shape']}".encode())
            begin, end = entry["data_offsets"]
            for place, count in _spans(begin, end, size <= _WHOLE_BYTES):
                file.seek(start + place)
                data = file.read(count)
                if len(data) < count:
                    raise ValueError(f"it ends before {name} does")
                hasher.update(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no safetensors file ({error!r}); download it again.") from error


def _spans(begin: int, end: int, whole: bool) -> list[tuple[int, int]]:
    """Which bytes of a tensor are looked at: (place, count)."""
    if whole or end - begin <= 2 * _SAMPLE_BYTES:
        return [(begin, end - begin)]
    return [(begin, _SAMPLE_BYTES), (end - _SAMPLE_BYTES, _SAMPLE_BYTES)]
