"""Tensor files: written whole or not at all, and readable by whoever may read their neighbours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write to a temporary sibling, then rename."""
    temporary = path.with_name(path.name + ".tmp")
    save_file(dict(tensors), temporary, metadata)
    os.chmod(temporary, 0o666 & ~_umask())  # safetensors keeps what it writes to its owner
    os.replace(temporary, path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
