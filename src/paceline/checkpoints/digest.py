"""What identifies a checkpoint: a digest that is cheap even where the weights take many gigabytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def checkpoint_digest(folder: Path) -> str:
    """Digest of a folder's config.json and of its safetensors files: their sizes, headers and evenly spaced samples.

    Another checkpoint of the same architecture differs in it; a copy does not.
    """
    hasher = hashlib.sha256()
    hasher.update((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        hasher.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for index in range(_SAMPLES):
                file.seek(index * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                hasher.update(file.read(_SAMPLE_BYTES))
    return hasher.hexdigest()[:16]
