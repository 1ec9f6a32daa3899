"""A few rows times a large weight, on the host, at the speed of reading the weight once.

The weight lies in panels of LANES outputs: panel p holds, input by input, the weights of outputs p*LANES and on,
so that a thread streams it front to back. At most MAX_ROWS rows meet a panel at a time, one vector register file
full of accumulators; later rows find the panel in the cache, while the next one is being fetched.

    for each panel (threads take the next free one)
        for each group of rows
            for each input k
                accumulator[row] = fma(x[row, k], panel[k], accumulator[row])

Every output is one chain of fused multiply-adds in the order of the inputs, started from the bias: a row's result
does not depend on how many rows go with it, bit for bit.

The loop is compiled by LLVM for the processor at hand, and run by the OpenMP threads that PyTorch itself uses: a
second pool of threads would fight with its waiting ones for the cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import no_type_check

import numba
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
MAX_ROWS = 6
_FLOAT_BYTES = 4
_INT = ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)

Product = Callable[[int], None]
"""Takes the address of its Int64 arguments: that of a counter that is 0, x Float32[n, i], n, i, the panels, how many,
bias Float32[o], out Float32[n, o], o."""


def _constant(value: int) -> ir.Constant:
    return ir.Constant(_INT, value)


@no_type_check
def _declare(builder, name, returns, arguments):
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(returns, arguments), name)


@no_type_check
def _load_weights(builder, address, half):
    """The weights of one input as <LANES x float>; bfloat16 is the upper half of a float32."""
    if not half:
        loaded = builder.load(builder.inttoptr(address, _FLOATS.as_pointer()))
        loaded.align = _FLOAT_BYTES
        return loaded
    shorts = builder.load(builder.inttoptr(address, ir.VectorType(ir.IntType(16), LANES).as_pointer()))
    shorts.align = 2
    wide = ir.VectorType(ir.IntType(32), LANES)
    shifted = builder.shl(builder.zext(shorts, wide), ir.Constant(wide, [16] * LANES))
    return builder.bitcast(shifted, _FLOATS)


@no_type_check
def _broadcast(builder, address):
    value = builder.load(builder.inttoptr(address, ir.FloatType().as_pointer()))
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


@no_type_check
def _rows_times_panel(rows: int, half: bool):
    """An intrinsic for exactly `rows` rows: (x, bytes of an x row, panel, inputs, bias, out, bytes of an out row)."""
    step = LANES * (2 if half else _FLOAT_BYTES)

    @intrinsic
    def product(typing_context, x, x_stride, panel, inputs, bias, out, out_stride):
        def generate(context, builder, signature, arguments):
            x_at, x_bytes, panel_at, depth, bias_at, out_at, out_bytes = arguments
            fma = _declare(builder, f"llvm.fma.v{LANES}f32", _FLOATS, [_FLOATS] * 3)
            byte = ir.IntType(8).as_pointer()
            flag = ir.IntType(32)
            prefetch = _declare(builder, "llvm.prefetch.p0", ir.VoidType(), [byte, flag, flag, flag])
            starts = [builder.add(x_at, builder.mul(x_bytes, _constant(row))) for row in range(rows)]
            first = _load_weights(builder, bias_at, half=False)
            panel_bytes = builder.mul(depth, _constant(step))
            entry, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(loop)
            builder.position_at_end(loop)
            index = builder.phi(_INT)
            index.add_incoming(_constant(0), entry)
            sums = [builder.phi(_FLOATS) for _ in range(rows)]
            for total in sums:
                total.add_incoming(first, entry)
            weights_at = builder.add(panel_at, builder.mul(index, _constant(step)))
            weights = _load_weights(builder, weights_at, half)
            ahead = builder.inttoptr(builder.add(weights_at, panel_bytes), byte)
            builder.call(prefetch, [ahead, flag(0), flag(2), flag(1)])  # read, keep in the second-level cache, data
            offset = builder.mul(index, _constant(_FLOAT_BYTES))
            grown = [
                builder.call(fma, [_broadcast(builder, builder.add(start, offset)), weights, total])
                for start, total in zip(starts, sums, strict=True)
            ]
            following = builder.add(index, _constant(1))
            index.add_incoming(following, loop)
            for total, larger in zip(sums, grown, strict=True):
                total.add_incoming(larger, loop)
            builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
            builder.position_at_end(after)
            for row, total in enumerate(grown):
                place = builder.add(out_at, builder.mul(out_bytes, _constant(row)))
                builder.store(total, builder.inttoptr(place, _FLOATS.as_pointer())).align = _FLOAT_BYTES
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return product


@intrinsic
@no_type_check
def _claim(typing_context, counter):
    """Add one to the Int64 at this address, for all threads; what it was before."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _INT.as_pointer())
        return builder.atomic_rmw("add", pointer, _constant(1), "monotonic")

    return types.int64(types.int64), generate


@no_type_check
def _compile(half: bool):
    """The loop over panels as a C function of one pointer to its Int64 arguments."""
    one, two, three, four, five, six = (_rows_times_panel(rows, half) for rows in range(1, MAX_ROWS + 1))
    step = LANES * (2 if half else _FLOAT_BYTES)

    @numba.cfunc(types.void(types.CPointer(types.int64)))
    def body(arguments):
        counter, x, rows, inputs, panels, num_panels, bias, out, outputs = numba.carray(arguments, 9)
        groups = (rows + MAX_ROWS - 1) // MAX_ROWS
        size, larger = rows // groups, rows % groups
        x_bytes, out_bytes, lanes_bytes = inputs * _FLOAT_BYTES, outputs * _FLOAT_BYTES, LANES * _FLOAT_BYTES
        while True:
            panel = _claim(counter)
            if panel >= num_panels:
                break
            weights, start = panels + panel * inputs * step, bias + panel * lanes_bytes
            x_at, out_at = x, out + panel * lanes_bytes
            for group in range(groups):
                count = size + 1 if group < larger else size
                if count == 6:
                    six(x_at, x_bytes, weights, inputs, start, out_at, out_bytes)
                elif count == 5:
                    five(x_at, x_bytes, weights, inputs, start, out_at, out_bytes)
                elif count == 4:
                    four(x_at, x_bytes, weights, inputs, start, out_at, out_bytes)
                elif count == 3:
                    three(x_at, x_bytes, weights, inputs, start, out_at, out_bytes)
                elif count == 2:
                    two(x_at, x_bytes, weights, inputs, start, out_at, out_bytes)
                else:
                    one(x_at, x_bytes, weights, inputs, start, out_at, out_bytes)
                x_at += count * x_bytes
                out_at += count * out_bytes

    return body


@cache
def panel_product(half: bool) -> Product:
    """The compiled loop for float32 weights, or for bfloat16 ones (`half`).

    Raises OSError where PyTorch has no GNU OpenMP runtime.
    """
    body = _compile(half)
    start = _openmp().GOMP_parallel
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None

    def run(arguments: int) -> None:
        start(body.address, arguments, torch.get_num_threads(), 0)

    return run


@cache
def _openmp() -> ctypes.CDLL:
    """The OpenMP runtime that PyTorch has loaded (GNU's, on Linux)."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    of_torch = sorted(path for path in paths if "torch" in path) or sorted(paths)
    if not of_torch:
        raise OSError("PyTorch has loaded no GNU OpenMP runtime")
    return ctypes.CDLL(of_torch[0])
