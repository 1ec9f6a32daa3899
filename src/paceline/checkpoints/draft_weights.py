"""Weights of draft networks, checked against the network that they are for; the same in every dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from paceline.checkpoints.files import few, read_config
from paceline.errors import CheckpointError
from paceline.models.draft_network import DraftNetwork, DraftSizes

METADATA = "paceline"
"""The key of a config.json under which stands what paceline adds."""


@runtime_checkable
class MadeFor(Protocol):
    """What a draft network's config says of the target it was made for."""

    @property
    def target_hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_target_layers(self) -> int: ...


def fill_network(network: DraftNetwork, weights: dict[str, Tensor], dtype: torch.dtype, path: Path, kind: str) -> None:
    """Give a network (on the meta device) its weights, in `dtype`, and put it into evaluation mode.

    Raises:
        CheckpointError: weights are missing, unknown, misshaped or not finite.
    """
    _check_names_and_shapes(weights, network.state_dict(), path, kind)
    for name, weight in weights.items():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise CheckpointError(f"{path} holds NaN or infinity in {name}; download or train it again.")
    ready = {name: _as_stored(name, weight, dtype) for name, weight in weights.items()}
    network.load_state_dict(ready, assign=True)
    network.eval()


def stored_weights(network: DraftNetwork, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a checkpoint holds of a network: all weights but the borrowed ones."""
    return {
        name: _as_stored(name, weight.detach(), dtype).cpu().contiguous()
        for name, weight in network.state_dict().items()
    }


def read_metadata(path: Path) -> dict[str, Any]:
    """What paceline wrote beside a draft network as `extra`; empty for a checkpoint that paceline did not write."""
    metadata = read_config(path).get(METADATA, {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path} has a {type(metadata).__name__} under {METADATA!r}, but must have an object.")
    return metadata


def check_fits(config: MadeFor, hidden_size: int, vocab_size: int, num_layers: int, name: str) -> None:
    """Refuse a draft network that was made for another target than `name`, whose sizes are given.

    Raises:
        CheckpointError: its hidden size, vocabulary or number of layers is another.
    """
    pairs = {
        "hidden size": (config.target_hidden_size, hidden_size),
        "vocabulary": (config.vocab_size, vocab_size),
        "number of layers": (config.num_target_layers, num_layers),
    }
    differences = [f"{what} {ours}, not {theirs}" for what, (ours, theirs) in pairs.items() if ours != theirs]
    if differences:
        raise CheckpointError(
            f"This drafter was made for another target than {name} ({'; '.join(differences)}); "
            "use one that was trained for it."
        )


def fill_in_vocabulary(weights: dict[str, Tensor], config: DraftSizes, path: Path) -> None:
    """Check `d2t`, and derive `t2d`, which says the same and may be absent.

    Raises:
        CheckpointError: the offsets leave the target's vocabulary or collide, or `t2d` disagrees.
    """
    if config.draft_vocab_size is None or "d2t" not in weights or len(weights["d2t"]) != config.draft_vocab_size:
        return
    ids = weights["d2t"].long() + torch.arange(config.draft_vocab_size)
    inside = bool(((ids >= 0) & (ids < config.vocab_size)).all())
    if not inside or len(ids.unique()) != len(ids):
        raise CheckpointError(
            f"{path} has a d2t whose offsets do not lead to distinct tokens below {config.vocab_size}."
        )
    named = torch.zeros(config.vocab_size, dtype=torch.bool)
    named[ids] = True
    given = weights.setdefault("t2d", named)
    if given.shape == named.shape and not torch.equal(given.bool(), named):
        raise CheckpointError(f"{path} has a t2d that names other tokens than its d2t.")


def _check_names_and_shapes(weights: dict[str, Tensor], expected: dict[str, Tensor], path: Path, kind: str) -> None:
    missing = sorted(set(expected) - set(weights))
    if missing:
        raise CheckpointError(f"{path} lacks the weights {few(missing)}.")
    unknown = sorted(set(weights) - set(expected))
    if unknown:
        raise CheckpointError(f"{path} has weights that {kind} does not: {few(unknown)}.")
    for name, weight in weights.items():
        came, wanted = list(weight.shape), list(expected[name].shape)
        if came != wanted:
            raise CheckpointError(f"{path} has {name} of shape {came}, but its config.json asks for {wanted}.")


def _as_stored(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """d2t and t2d keep their kind; all other weights take `dtype`."""
    kinds = {"d2t": torch.int64, "t2d": torch.bool}
    return weight.to(kinds.get(name, dtype))
