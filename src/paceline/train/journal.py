"""What a run leaves behind: train.log (JSON lines), TensorBoard events, and who made it from what."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from paceline.errors import CheckpointError, InputError
from paceline.train.config import MAY_CHANGE, TrainConfig
from paceline.train.data import ConversationDataset

PROVENANCE = "provenance.json"
RECORDING = "settings.json"
"""How a folder of shards was recorded; it lies beside them."""


class Journal:
    """Appends records to `train.log` and TensorBoard; a resumed run first drops what it will do again."""

    def __init__(self, run: Path, step: int) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self._path = run / "train.log"
        kept = [line for line in self._lines() if json.loads(line)["step"] <= step]
        write_text(self._path, "".join(line + "\n" for line in kept))
        self._file = self._path.open("a")
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def record(self, step: int, values: Mapping[str, Any]) -> None:
        """One line and one point per number."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the files."""
        self._file.close()
        self._board.close()

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        whole = self._path.read_text().split("\n")[:-1]
        return [line for line in whole if line]


def settle_settings(config: TrainConfig, num_processes: int) -> list[str] | None:
    """The names of the shards that the run was started with; None for a new run.

    Raises InputError where a setting that shapes the run, or the number of processes, is no longer what it was.
    """
    recorded = _recorded(config)
    if recorded is None:
        return None
    now = as_plain(config) | {"processes": num_processes}
    check_settings(config.run, now, recorded["config"] | {"processes": recorded["processes"]}, MAY_CHANGE)
    return list(recorded["data"]["shards"])


def check_settings(folder: Path, now: dict[str, Any], before: dict[str, Any], may_change: frozenset[str]) -> None:
    """Refuse to go on in a folder that was begun with other settings, naming the first that differs."""
    differing = [name for name in now if name not in may_change and now[name] != before.get(name)]
    if differing:
        name = differing[0]
        raise InputError(
            f"{folder} was begun with {name} = {before.get(name)} but {now[name]} was asked for; "
            "repeat its settings to resume it, or give another folder"
        )


def check_shards(config: TrainConfig, dataset: ConversationDataset) -> None:
    """Refuse shards that changed since the run was started."""
    recorded = _recorded(config)
    if recorded is None:
        return
    for shard in dataset.shards:
        if recorded["data"]["shards"][shard.path.name] != shard.digest():
            raise InputError(f"{shard.path} changed since {config.run} was started; give another run folder")


def write_provenance(config: TrainConfig, dataset: ConversationDataset, num_processes: int) -> None:
    """Who made this run from what; a run that goes on keeps its own."""
    if _recorded(config) is not None:
        return
    text = json.dumps(
        {
            "command": sys.argv,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "versions": {name: _version(name) for name in ("paceline", "torch", "safetensors", "accelerate")},
            "python": platform.python_version(),
            "machine": platform.platform(),
            "processes": num_processes,
            "config": as_plain(config),
            "data": {
                "conversations": len(dataset),
                "response_tokens": dataset.num_response_tokens(),
                "shards": {shard.path.name: shard.digest() for shard in dataset.shards},
            },
        },
        indent=2,
    )
    config.run.mkdir(parents=True, exist_ok=True)
    write_text(config.run / PROVENANCE, text + "\n")


def _recorded(config: TrainConfig) -> dict[str, Any] | None:
    path = config.run / PROVENANCE
    return read_json(path) if path.exists() else None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that a run or a recording left behind.

    Raises CheckpointError where it is none.
    """
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); give another folder.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds {type(found).__name__}, but must hold a JSON object; give another folder.")
    return found


def as_plain(config: Any) -> dict[str, Any]:
    """The settings as JSON has them."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    return plain


def write_text(path: Path, text: str) -> None:
    """Replace a file's text at once."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
