"""Hugging Face's keys for rotary embeddings, to and from `RopeConfig`.

Older files hold `rope_theta`, `rope_scaling` and `partial_rotary_factor` at the top level, newer ones all of
them in `rope_parameters`. The older form is written, for every reader takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.rope import LinearScaling, Llama3Scaling, RopeConfig


def parse_rope(stored: Mapping[str, Any], path: Path) -> RopeConfig:
    """The rotary embedding of a `config.json`; `path` is for errors.

    Raises:
        CheckpointError: a key of the scaling is missing.
        UnsupportedModelError: a scaling other than linear and llama3.
    """
    scaling = stored.get("rope_scaling") or {}
    parameters = {**stored, **scaling, **(stored.get("rope_parameters") or {})}
    kind = parameters.get("rope_type") or scaling.get("type") or "default"
    try:
        return RopeConfig(
            theta=float(parameters.get("rope_theta", 10_000.0)),
            partial_rotary_factor=float(parameters.get("partial_rotary_factor", 1.0)),
            scaling=_scaling(kind, parameters, path),
        )
    except KeyError as error:
        raise CheckpointError(f"{path} has {kind} rope scaling without {error.args[0]}.") from None


def spell_rope(rope: RopeConfig) -> dict[str, Any]:
    """The keys that `parse_rope` reads back."""
    kinds = {LinearScaling: "linear", Llama3Scaling: "llama3"}
    scaling = None
    if rope.scaling is not None:
        scaling = {"rope_type": kinds[type(rope.scaling)], **asdict(rope.scaling)}
    spelled = {"rope_theta": rope.theta, "rope_scaling": scaling}
    if rope.partial_rotary_factor != 1:
        spelled["partial_rotary_factor"] = rope.partial_rotary_factor
    return spelled


def _scaling(kind: str, parameters: Mapping[str, Any], path: Path) -> LinearScaling | Llama3Scaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(parameters["factor"])
        case "llama3":
            return Llama3Scaling(
                factor=parameters["factor"],
                low_freq_factor=parameters["low_freq_factor"],
                high_freq_factor=parameters["high_freq_factor"],
                original_max_position_embeddings=parameters["original_max_position_embeddings"],
            )
        case _:
            raise UnsupportedModelError(
                f"{path} has {kind} rope scaling, but only default, linear and llama3 are implemented here."
            )
