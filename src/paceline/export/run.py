"""From a checkpoint of one dialect to one of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.draft_weights import check_fits, read_metadata
from paceline.checkpoints.eagle3 import write_eagle3
from paceline.checkpoints.files import read_weights, replacing_folder
from paceline.checkpoints.networks import load_network
from paceline.checkpoints.speculators_writing import Verifier, write_speculators
from paceline.checkpoints.target_weights import TargetWeights
from paceline.checkpoints.z_lab import write_dflash
from paceline.errors import CheckpointError, InputError
from paceline.export.parity import check_forms, check_same
from paceline.models.dflash import DFlashNetwork

_METHODS: Mapping[str, tuple[Dialect, ...]] = MappingProxyType(
    {"z-lab": (Dialect.Z_LAB,), "eagle3": (Dialect.EAGLE3,), "speculators": (Dialect.Z_LAB, Dialect.EAGLE3)}
)
_KINDS = {
    Dialect.Z_LAB: "a DFlash drafter",
    Dialect.EAGLE3: "an EAGLE-3 drafter",
    Dialect.SPECBLOCK: "a SpecBlock drafter",
    Dialect.HEADS: "a drafter of parallel heads",
    Dialect.CAUSAL_LM: "a language model",
}


@dataclass(frozen=True)
class Exported:
    """What was written, and how many tokens both forms of it drafted alike."""

    kind: str
    tokens_compared: int


def export(source: Path, out: Path, form: str, target: Path, verifier: str) -> Exported:
    """Write the checkpoint in `source` in another form; `out` is there whole or not at all.

    Weights keep their dtype. A head of a reduced vocabulary that it borrows from `target` is written out, for servers
    lend a drafter the whole head.

    Raises:
        CheckpointError: it cannot be read, was made for another target, or does not serve as it was trained.
        InputError: `form` is of another method.
    """
    dialect = dialect_of(source)
    fitting = [name for name, kinds in _METHODS.items() if dialect in kinds]
    if not fitting:
        raise InputError(f"{source} is {_KINDS[dialect]}, which no other server reads; it cannot be exported.")
    if dialect not in _METHODS[form]:
        raise InputError(
            f"{source} is {_KINDS[dialect]}, but what is written as {form!r} is "
            f"{' or '.join(_KINDS[kind] for kind in _METHODS[form])}; choose {' or '.join(map(repr, fitting))}."
        )
    weights = TargetWeights(target)
    depth, dtype = weights.config["num_hidden_layers"], _dtype(source)
    network = load_network(dialect, source, depth)
    check_fits(network.config, weights.config["hidden_size"], weights.config["vocab_size"], depth, verifier)
    network = _with_own_head(network, weights, dtype)
    network.attach(weights.embedding(), weights.head())
    compared = check_forms(network)
    extra = read_metadata(source)
    with replacing_folder(out, must_be_new=True) as folder:
        if form == "speculators":
            architectures = weights.config.get("architectures") or []
            write_speculators(network, folder, Verifier(verifier, architectures), extra, dtype)
        elif isinstance(network, DFlashNetwork):
            write_dflash(network, folder, extra, dtype)
        else:
            write_eagle3(network, folder, extra, dtype)
        check_same(load_network(dialect, folder, depth), network)
    return Exported(_KINDS[dialect], compared)


def _with_own_head(network: Any, weights: TargetWeights, dtype: torch.dtype) -> Any:
    """The network with the target's rows of its vocabulary as a head of its own, where that is reduced and borrowed."""
    config = network.config
    if config.draft_vocab_size is None or config.has_head:
        return network
    fresh = type(network)(replace(config, has_head=True))
    fresh.load_state_dict(network.state_dict(), strict=False)
    with torch.no_grad():
        fresh.lm_head.weight.copy_(weights.head()[fresh.draft_vocabulary()].to(dtype))
    return fresh.eval()


def _dtype(source: Path) -> torch.dtype:
    """That of the weights, which must be one."""
    kinds = {weight.dtype for weight in read_weights(source).values() if weight.is_floating_point()}
    if len(kinds) != 1:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise CheckpointError(f"{source} has weights of several kinds ({names}), but one is written; convert them.")
    return kinds.pop()
