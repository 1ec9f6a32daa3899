"""What identifies a checkpoint: a digest that is cheap even where the weights take many gigabytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from paceline.checkpoints.files import CONFIG, read_config
from paceline.errors import CheckpointError

_WHOLE_BYTES = 32 * 2**20
_SAMPLE_BYTES = 512


def checkpoint_digest(folder: Path) -> str:
    """Digest of a folder's config.json and weights: small files whole, of large ones both ends of every tensor.

    A copy has the same digest. Another checkpoint of the same architecture has another one, unless it differs only
    inside of large tensors.

    Raises:
        CheckpointError: no config.json there, or a weight file that cannot be read.
    """
    read_config(folder)
    hasher = hashlib.sha256((folder / CONFIG).read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = path.stat().st_size
        hasher.update(f"{path.name} {size}".encode())
        if size <= _WHOLE_BYTES or path.suffix == ".bin":
            with path.open("rb") as file:
                hasher.update(hashlib.file_digest(file, "sha256").digest())
        else:
            _add_samples(hasher, path)
    return hasher.hexdigest()[:16]


def _add_samples(hasher: hashlib._Hash, path: Path) -> None:
    """The header of a safetensors file, and both ends of every tensor."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = file.read(start - 8)
        hasher.update(header)
        try:
            spans = [entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is no safetensors file ({error!r}); download it again.") from error
        for begin, end in sorted(map(tuple, spans)):
            for place in (begin, max(begin, end - _SAMPLE_BYTES)):
                file.seek(start + place)
                hasher.update(file.read(min(_SAMPLE_BYTES, end - place)))
