"""What a run leaves behind: train.log (JSON lines), TensorBoard events, and who made it from what."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from paceline.errors import InputError
from paceline.records import as_plain, check_settings, read_json
from paceline.result_files import write_text
from paceline.train.config import MAY_CHANGE, RunConfig
from paceline.train.data import ConversationDataset

PROVENANCE = "provenance.json"


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


def settle_settings(config: RunConfig, num_processes: int) -> list[str] | None:
    """The names of the shards that the run was started with; None for a new run.

    Raises InputError where a setting that shapes the run, or the number of processes, is no longer what it was.
    """
    recorded = _recorded(config)
    if recorded is None:
        return None
    now = as_plain(config) | {"processes": num_processes}
    check_settings(config.run, now, recorded["config"] | {"processes": recorded["processes"]}, MAY_CHANGE)
    return list(recorded["data"]["shards"])


def check_shards(config: RunConfig, dataset: ConversationDataset) -> None:
    """Refuse shards that changed since the run was started."""
    recorded = _recorded(config)
    if recorded is None:
        return
    for shard in dataset.shards:
        if recorded["data"]["shards"][shard.path.name] != shard.digest():
            raise InputError(f"{shard.path} changed since {config.run} was started; give another run folder")


def write_provenance(config: RunConfig, dataset: ConversationDataset, num_processes: int) -> None:
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


def _recorded(config: RunConfig) -> dict[str, Any] | None:
    path = config.run / PROVENANCE
    return read_json(path) if path.exists() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
