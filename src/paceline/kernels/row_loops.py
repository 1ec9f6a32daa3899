"""The small operations between a decoder's products, each one pass over its rows, on the host.

PyTorch runs each of them as a handful of operators, and with a few rows the time goes into starting those. A row's
result does not depend on the other rows, bit for bit.

Letters: n rows, h hidden, g heads, d head dimension, i intermediate size.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, no_type_check

import numba
import torch
from jaxtyping import Float
from torch import Tensor

from paceline.kernels.machine_code import FLOAT_BYTES, LANES, Code, claim, machine_code, numbers
from paceline.kernels.openmp import loop_body, run

_LANES_BYTES = LANES * FLOAT_BYTES


def rms_norm(x: Float[Tensor, "*n h"], weight: Float[Tensor, " h"], eps: float) -> Float[Tensor, "*n h"]:
    """x / sqrt(mean of x^2 + eps) * weight; contiguous float32, h a multiple of LANES."""
    size = x.shape[-1]
    rows, out = x.numel() // size, torch.empty_like(x)
    (eps_bits,) = struct.unpack("i", struct.pack("f", eps))
    run(_rms_norm(), rows, rows, size, x.data_ptr(), weight.data_ptr(), eps_bits, out.data_ptr())
    return out


def silu_product(gate_up: Float[Tensor, "*n 2*i"]) -> Float[Tensor, "*n i"]:
    """silu(gate) * up, the two side by side in a row; contiguous float32, i a multiple of LANES."""
    size = gate_up.shape[-1] // 2
    rows, out = gate_up.numel() // (2 * size), gate_up.new_empty(*gate_up.shape[:-1], size)
    run(_silu_product(), rows, rows, size, gate_up.data_ptr(), out.data_ptr())
    return out


def rotate_(x: Float[Tensor, "n g d"], cos: Float[Tensor, "n d"], sin: Float[Tensor, "n d"]) -> None:
    """Turn every head by its row's rotation, in place: x * cos + (-second half, first half) * sin.

    float32; a row's heads lie side by side in memory, and so do a rotation's numbers.
    """
    rows, heads, size = x.shape
    run(_rotate(), rows, rows, heads, size, x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr())


@cache
def _rms_norm() -> Any:
    def emit(code: Code, x: Any, weight: Any, vectors: Any, size: Any, eps_bits: Any, out: Any) -> None:
        builder, step = code.builder, code.integer(_LANES_BYTES)

        def add_square(index: Any, carried: list[Any]) -> list[Any]:
            value = code.load(code.at(x, index, step))
            return [code.fma(value, value, carried[0])]

        def scale(index: Any, carried: list[Any]) -> list[Any]:
            value = builder.fmul(code.load(code.at(x, index, step)), inverse)
            code.store(code.at(out, index, step), builder.fmul(value, code.load(code.at(weight, index, step))))
            return []

        (squares,) = code.loop(vectors, [code.vector(0.0)], add_square)
        mean = builder.fdiv(code.sum_of_lanes(squares), code.to_float(size))
        root = code.root(builder.fadd(mean, code.float_of(eps_bits)))
        inverse = builder.fdiv(code.vector(1.0), code.in_every_lane(root))
        code.loop(vectors, [], scale)

    row_norm = machine_code(emit)

    @no_type_check
    def body(arguments):
        counter, rows, size, x, weight, eps_bits, out = numba.carray(arguments, 7)
        while True:
            row = claim(counter)
            if row >= rows:
                break
            start = row * size * FLOAT_BYTES
            row_norm((x + start, weight, size // LANES, size, eps_bits, out + start))

    return loop_body(body)


@cache
def _silu_product() -> Any:
    def emit(code: Code, gate: Any, up: Any, vectors: Any, out: Any) -> None:
        builder, step, one = code.builder, code.integer(_LANES_BYTES), code.vector(1.0)

        def product(index: Any, carried: list[Any]) -> list[Any]:
            value = code.load(code.at(gate, index, step))
            silu = builder.fdiv(value, builder.fadd(one, code.exp(builder.fneg(value))))
            code.store(code.at(out, index, step), builder.fmul(silu, code.load(code.at(up, index, step))))
            return []

        code.loop(vectors, [], product)

    row_product = machine_code(emit)

    @no_type_check
    def body(arguments):
        counter, rows, size, gate_up, out = numba.carray(arguments, 5)
        while True:
            row = claim(counter)
            if row >= rows:
                break
            gate = gate_up + 2 * row * size * FLOAT_BYTES
            row_product((gate, gate + size * FLOAT_BYTES, size // LANES, out + row * size * FLOAT_BYTES))

    return loop_body(body)


@cache
def _rotate() -> Any:
    @no_type_check
    def body(arguments):
        counter, rows, heads, size, x, stride, cos, sin = numba.carray(arguments, 8)
        half = size // 2
        while True:
            row = claim(counter)
            if row >= rows:
                break
            cosines = numbers(cos + row * size * FLOAT_BYTES, size)
            sines = numbers(sin + row * size * FLOAT_BYTES, size)
            for head in range(heads):
                values = numbers(x + (row * stride + head * size) * FLOAT_BYTES, size)
                for k in range(half):
                    first, second = values[k], values[k + half]
                    values[k] = first * cosines[k] - second * sines[k]
                    values[k + half] = second * cosines[k + half] + first * sines[k + half]

    return loop_body(body)
