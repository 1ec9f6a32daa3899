"""Vector code for the host, written as LLVM and called from compiled Python loops.

Loops over contiguous floats, a register of LANES at a time, that must come out the same whatever goes with them:
each lane is one chain of operations in a fixed order, which a compiler that vectorises for itself does not promise.
Addresses are Int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
FLOAT_BYTES = 4
_INT = ir.IntType(64)
_FLAG = ir.IntType(32)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(_FLAG, LANES)

# exp(r) for |r| <= ln(2) / 2: coefficients of r^2 .. r^7, highest first (Cephes, expf)
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_SMALLEST, _EXP_LARGEST = -87.0, 88.0
_LN_2_HIGH, _LN_2_LOW = 0.693359375, -2.12194440e-4


class Code:
    """Writes vector instructions; a vector is LANES floats."""

    def __init__(self, builder: Any):
        self.builder = builder

    def integer(self, value: int) -> Any:
        return ir.Constant(_INT, value)

    def vector(self, value: float) -> Any:
        return ir.Constant(_FLOATS, [value] * LANES)

    def at(self, address: Any, index: Any, step: Any) -> Any:
        """address + index * step, in bytes."""
        return self.builder.add(address, self.builder.mul(index, step))

    def load(self, address: Any, half: bool = False) -> Any:
        """A vector of float32, or of bfloat16 (`half`), which is the upper half of a float32."""
        builder = self.builder
        if not half:
            return self._read(address, _FLOATS, FLOAT_BYTES)
        shorts = self._read(address, ir.VectorType(ir.IntType(16), LANES), 2)
        wide = builder.shl(builder.zext(shorts, _INTS), ir.Constant(_INTS, [16] * LANES))
        return builder.bitcast(wide, _FLOATS)

    def spread(self, address: Any, half: bool = False) -> Any:
        """One number in every lane."""
        builder = self.builder
        if half:
            short = builder.zext(self._read(address, ir.IntType(16), 2), _FLAG)
            value = builder.bitcast(builder.shl(short, _FLAG(16)), ir.FloatType())
        else:
            value = self._read(address, ir.FloatType(), FLOAT_BYTES)
        return self.in_every_lane(value)

    def in_every_lane(self, value: Any) -> Any:
        undefined = ir.Constant(_FLOATS, ir.Undefined)
        single = self.builder.insert_element(undefined, value, _FLAG(0))
        return self.builder.shuffle_vector(single, undefined, ir.Constant(_INTS, [0] * LANES))

    def store(self, address: Any, value: Any) -> None:
        place = self.builder.inttoptr(address, _FLOATS.as_pointer())
        self.builder.store(value, place).align = FLOAT_BYTES

    def prefetch(self, address: Any) -> None:
        """Ask for data to be read soon, into the second-level cache."""
        byte = ir.IntType(8).as_pointer()
        call = self._function("llvm.prefetch.p0", ir.VoidType(), [byte, _FLAG, _FLAG, _FLAG])
        self.builder.call(call, [self.builder.inttoptr(address, byte), _FLAG(0), _FLAG(2), _FLAG(1)])

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self._call(f"llvm.fma.v{LANES}f32", a, b, c)

    def larger(self, a: Any, b: Any) -> Any:
        return self._call(f"llvm.maxnum.v{LANES}f32", a, b)

    def sum_of_lanes(self, a: Any) -> Any:
        """A single float: the lanes added in their order."""
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        call = self._function(name, ir.FloatType(), [ir.FloatType(), _FLOATS])
        return self.builder.call(call, [ir.Constant(ir.FloatType(), 0.0), a])

    def to_float(self, integer: Any) -> Any:
        return self.builder.sitofp(integer, ir.FloatType())

    def float_of(self, bits: Any) -> Any:
        """The float32 that an integer holds."""
        return self.builder.bitcast(self.builder.trunc(bits, _FLAG), ir.FloatType())

    def root(self, value: Any) -> Any:
        call = self._function("llvm.sqrt.f32", ir.FloatType(), [ir.FloatType()])
        return self.builder.call(call, [value])

    def exp(self, x: Any) -> Any:
        """e to the x to about one unit in the last place; 0 below -87, and as if x were 88 above."""
        builder = self.builder
        vanishes = builder.fcmp_ordered("<", x, self.vector(_EXP_SMALLEST))
        x = self._call(
            f"llvm.minnum.v{LANES}f32", self.larger(x, self.vector(_EXP_SMALLEST)), self.vector(_EXP_LARGEST)
        )
        scaled = self.fma(x, self.vector(1 / math.log(2)), self.vector(0.5))
        power = self._call(f"llvm.floor.v{LANES}f32", scaled)
        rest = self.fma(power, self.vector(-_LN_2_HIGH), x)
        rest = self.fma(power, self.vector(-_LN_2_LOW), rest)
        series = self.vector(_EXP[0])
        for coefficient in _EXP[1:]:
            series = self.fma(series, rest, self.vector(coefficient))
        small = self.fma(series, builder.fmul(rest, rest), builder.fadd(rest, self.vector(1.0)))
        exponent = builder.add(builder.fptosi(power, _INTS), ir.Constant(_INTS, [127] * LANES))
        scale = builder.bitcast(builder.shl(exponent, ir.Constant(_INTS, [23] * LANES)), _FLOATS)
        return builder.select(vanishes, self.vector(0.0), builder.fmul(small, scale))

    def loop(self, count: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
        """`count` times (at least once) values = body(index, values); the last values."""
        builder = self.builder
        entry, block, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(block)
        builder.position_at_end(block)
        index = builder.phi(_INT)
        index.add_incoming(self.integer(0), entry)
        values = [builder.phi(value.type) for value in carried]
        for value, first in zip(values, carried, strict=True):
            value.add_incoming(first, entry)
        following = body(index, list(values))
        increased = builder.add(index, self.integer(1))
        index.add_incoming(increased, builder.block)
        for value, new in zip(values, following, strict=True):
            value.add_incoming(new, builder.block)
        builder.cbranch(builder.icmp_signed("<", increased, count), block, after)
        builder.position_at_end(after)
        return list(following)

    def _read(self, address: Any, kind: Any, alignment: int) -> Any:
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = alignment
        return loaded

    def _call(self, name: str, *arguments: Any) -> Any:
        return self.builder.call(self._function(name, _FLOATS, [_FLOATS] * len(arguments)), arguments)

    def _function(self, name: str, returns: Any, arguments: list[Any]) -> Any:
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(returns, arguments), name)


def machine_code(emit: Callable[..., None]) -> Any:
    """A function for compiled Python of one tuple of Int64: `emit(code, *integers)` writes its instructions."""

    @intrinsic
    @no_type_check
    def function(typing_context, integers):
        def generate(context, builder, signature, arguments):
            emit(Code(builder), *(builder.extract_value(arguments[0], i) for i in range(len(integers))))
            return context.get_dummy_value()

        return types.void(integers), generate

    return function


@intrinsic
@no_type_check
def claim(typing_context, counter):
    """Add one to the Int64 at this address, for all threads; what it was before."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _INT.as_pointer())
        return builder.atomic_rmw("add", pointer, ir.Constant(_INT, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
@no_type_check
def _floats(typing_context, address):
    pointer = types.CPointer(types.float32)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64), generate


@numba.njit(inline="always")
@no_type_check
def numbers(address, shape):
    """The float32 array at an address."""
    return numba.carray(_floats(address), shape, types.float32)
