"""A drafter's checkpoint as it lies on disk, read as far as it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from paceline.checkpoints import eagle3_config, speculators
from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.draft_weights import METADATA, read_metadata
from paceline.checkpoints.eagle3 import empty_eagle3, named_weights
from paceline.checkpoints.files import read_config, read_weights
from paceline.checkpoints.heads import empty_heads
from paceline.checkpoints.specblock import empty_specblock
from paceline.checkpoints.z_lab import empty_dflash
from paceline.errors import CheckpointError, InputError, UnsupportedModelError

_UNKNOWN_DEPTH = 10_000
"""Layers that a target is taken to have where nobody says it: enough for any tapped layer."""
_EMPTY: Mapping[Dialect, Callable[..., Any]] = MappingProxyType(
    {
        Dialect.Z_LAB: empty_dflash,
        Dialect.EAGLE3: empty_eagle3,
        Dialect.SPECBLOCK: empty_specblock,
        Dialect.HEADS: empty_heads,
    }
)
_METHODS = {
    Dialect.Z_LAB: "DFlash",
    Dialect.EAGLE3: "EAGLE-3",
    Dialect.SPECBLOCK: "SpecBlock",
    Dialect.HEADS: "parallel heads",
}


@dataclass(frozen=True)
class Opened:
    """`stored` is the `config.json` as it is, `plain` the same in the dialect of the method's authors; `weights` have
    the names that the network has for them. `network` is on the meta device; where the config makes none, `complaint`
    says why."""

    path: Path
    dialect: Dialect
    stored: Mapping[str, Any]
    plain: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    network: Any
    complaint: CheckpointError | UnsupportedModelError | None

    @property
    def method(self) -> str:
        """The field's name of the drafting method."""
        return _METHODS[self.dialect]

    @property
    def form(self) -> str:
        """Whose way of writing this method's checkpoints it is."""
        by = ", written by paceline" if METADATA in self.stored else ""
        if speculators.KIND in self.stored:
            return f"speculators{by}"
        if self.dialect is Dialect.EAGLE3:
            return ("SpecForge" if "eagle_config" in self.stored else "SafeAILab") + by
        names = {Dialect.Z_LAB: "z-lab", Dialect.SPECBLOCK: "SpecBlock", Dialect.HEADS: "paceline's own"}
        return names[self.dialect] + by

    @property
    def config(self) -> Any:
        """The network's own config; None where there is no network."""
        return None if self.network is None else self.network.config

    @property
    def tap_key(self) -> tuple[str, bool]:
        """The key of its `config.json` that names the tapped layers, or would, and whether it counts their inputs."""
        if speculators.KIND in self.stored:
            return (eagle3_config.TAPS if self.dialect is Dialect.EAGLE3 else "aux_hidden_state_layer_ids"), True
        if self.dialect is Dialect.EAGLE3:
            at_the_top = eagle3_config.TAPS in self.stored and "eagle_config" not in self.stored
            return (eagle3_config.TAPS, True) if at_the_top else (f"eagle_config.{eagle3_config.TAPS}", False)
        own = self.stored.get("dflash_config")
        return ("dflash_config.target_layer_ids" if isinstance(own, dict) else "target_layer_ids"), False

    @property
    def names_taps(self) -> bool:
        """Whether it says which layers it taps."""
        value: Any = self.stored
        for part in self.tap_key[0].split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value is not None

    @property
    def says_depth(self) -> bool:
        """Whether it says how many layers its target has."""
        return self.plain.get("num_target_layers") is not None


def open_checkpoint(path: Path, num_target_layers: int | None) -> Opened:
    """Read a folder; a network that its config does not make is a complaint, not an error.

    Raises:
        CheckpointError: there is no such folder, it is no drafter's, or its weights cannot be read.
        UnsupportedModelError: a dialect's variant that is not known.
        InputError: it is no draft network, but a whole language model.
    """
    stored, dialect = read_config(path), dialect_of(path)
    read_metadata(path)  # refuses what no loader takes
    if dialect is Dialect.CAUSAL_LM:
        raise InputError(f"{path} is a whole language model, which drafts as it is; name a draft network.")
    plain = speculators.read_plain_config(path)
    weights = named_weights(path) if dialect is Dialect.EAGLE3 else read_weights(path)
    network, complaint = None, None
    try:
        network = _EMPTY[dialect](plain, weights, path, num_target_layers or _UNKNOWN_DEPTH)
    except (CheckpointError, UnsupportedModelError) as error:
        complaint = error
    return Opened(path, dialect, stored, plain, weights, network, complaint)
