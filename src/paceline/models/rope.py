"""Rotary position embedding (RoFormer, arXiv 2104.09864) in the half-split style of Llama and Qwen.

Dimension j of a head turns together with dimension j + r/2, both by the angle position * frequency[j]; the
dimensions past r (a partial rotary factor) do not turn. Angles are float32 whatever the network's dtype.

Letters: b rows, h heads, n positions, d head dimension, r rotary dimensions, p = r/2 pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from paceline.errors import InputError

Rotation = tuple[Float[Tensor, "*b n r"], Float[Tensor, "*b n r"]]


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (arXiv 2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise InputError(f"The linear rope factor is {self.factor}, but must be positive.")


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths slowed by `factor`, short ones kept, a linear blend between the two."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        if not (self.factor > 0 and 0 < self.low_freq_factor < self.high_freq_factor):
            raise InputError(
                f"The llama3 rope scaling is {self}, but needs a positive factor and "
                "0 < low_freq_factor < high_freq_factor."
            )


@dataclass(frozen=True)
class RopeConfig:
    """`partial_rotary_factor` is the share of each head's dimensions that turn."""

    theta: float = 10_000.0
    partial_rotary_factor: float = 1.0
    scaling: LinearScaling | Llama3Scaling | None = None

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise InputError(f"rope theta is {self.theta}, but must be positive.")
        if not 0 < self.partial_rotary_factor <= 1:
            raise InputError(f"partial_rotary_factor is {self.partial_rotary_factor}, but must be in (0, 1].")

    def rotary_dim(self, head_dim: int) -> int:
        """How many dimensions of a head turn.

        Raises:
            InputError: the number is odd or zero, so the dimensions do not pair up.
        """
        dims = int(head_dim * self.partial_rotary_factor)
        if dims < 2 or dims % 2:
            raise InputError(
                f"{dims} of the {head_dim} head dimensions would turn "
                f"(partial_rotary_factor {self.partial_rotary_factor}), but they must pair up."
            )
        return dims


def frequencies(config: RopeConfig, head_dim: int, device: torch.device) -> Float[Tensor, " p"]:
    """Radians per position of each pair of dimensions, scaling applied."""
    dims = config.rotary_dim(head_dim)
    exponents = torch.arange(0, dims, 2, dtype=torch.float32, device=device) / dims
    plain = 1.0 / config.theta**exponents
    match config.scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)


def _llama3(plain: Float[Tensor, " p"], scaling: Llama3Scaling) -> Float[Tensor, " p"]:
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / scaling.factor


class RotaryEmbedding(nn.Module):
    """Cosines and sines of integer positions. The frequencies stay float32 through every `.to(dtype)`."""

    frequencies: Tensor

    def __init__(self, config: RopeConfig, head_dim: int):
        super().__init__()
        self.config, self.head_dim = config, head_dim
        self.register_buffer("frequencies", frequencies(config, head_dim, torch.device("cpu")), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        super()._apply(fn, recurse)
        self.frequencies = frequencies(self.config, self.head_dim, self.frequencies.device)
        return self

    def forward(self, positions: Int64[Tensor, "*b n"]) -> Rotation:
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()


def rotate(heads: Float[Tensor, "b h n d"], rotation: Rotation) -> Float[Tensor, "b h n d"]:
    """Turn the first r dimensions of every head by the rotation of its position (the same for all heads)."""
    cosine, sine = (table[..., None, :, :].to(heads.dtype) for table in rotation)
    dims = cosine.shape[-1]
    turning, still = heads[..., :dims], heads[..., dims:]
    first, second = turning.chunk(2, -1)
    turned = turning * cosine + torch.cat((-second, first), -1) * sine
    return turned if still.shape[-1] == 0 else torch.cat((turned, still), -1)
