"""The checkpoint of a run: one safetensors file that appears whole or not at all.

It holds the weights, the optimisers' state, the moving average and, as metadata, the progress. No generator
state is needed: order and anchors are functions of (seed, step).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from paceline.errors import CheckpointError
from paceline.tensor_files import save_tensors

NUM_KEPT = 2


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    """Steps done."""
    minutes: float = 0.0
    """Minutes spent training, over all starts."""
    best_acceptance: float = 0.0
    """Best held-out acceptance length so far; 0 before the first measurement."""


def save_state(
    folder: Path,
    progress: Progress,
    network: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    average: Mapping[str, Tensor],
) -> None:
    """Write `step-<n>.safetensors` into `folder` and drop all but the last NUM_KEPT."""
    tensors = {f"network.{name}": p for name, p in _learning(network).items()}
    tensors |= {f"average.{name}": tensor for name, tensor in average.items()}
    for number, optimizer in enumerate(optimizers):
        for key, entries in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{key}.{name}": torch.as_tensor(v) for name, v in entries.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{progress.step:08d}.safetensors"
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    save_tensors(path, contiguous, {"progress": json.dumps(asdict(progress))})
    for old in sorted(folder.glob("step-*.safetensors"))[:-NUM_KEPT]:
        old.unlink()


def load_latest_state(
    folder: Path,
    network: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    average: dict[str, Tensor],
) -> Progress:
    """Put the newest checkpoint of `folder` into its arguments; the beginning where there is none."""
    paths = sorted(folder.glob("step-*.safetensors"))
    if not paths:
        return Progress()
    tensors, progress = _read(paths[-1])
    _copy_into(_learning(network), tensors, "network.", paths[-1])
    _copy_into(average, tensors, "average.", paths[-1])
    for number, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        prefix = f"optimizer.{number}."
        for name in (n for n in tensors if n.startswith(prefix)):
            key, entry = name.removeprefix(prefix).split(".", 1)
            state.setdefault(int(key), {})[entry] = tensors[name]
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return progress


def _learning(network: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def _read(path: Path) -> tuple[dict[str, Tensor], Progress]:
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            return {name: file.get_tensor(name).clone() for name in file.keys()}, progress  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"training checkpoint {path} cannot be read ({error}); delete it to go on from the one before"
        ) from error


@torch.no_grad()
def _copy_into(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], prefix: str, path: Path) -> None:
    for name, destination in wanted.items():
        source = tensors.get(prefix + name)
        if source is None or source.shape != destination.shape:
            raise CheckpointError(
                f"training checkpoint {path} does not fit: {prefix}{name} is "
                f"{'missing' if source is None else tuple(source.shape)}, expected {tuple(destination.shape)}; "
                "use another run folder"
            )
        destination.copy_(source)
