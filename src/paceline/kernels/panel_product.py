"""A few rows times a large matrix, on the host, at the speed of reading the matrix once.

The matrix lies in panels of LANES outputs: panel p holds, input by input, the weights of outputs p*LANES and on,
so that a thread streams it front to back. At most MAX_ROWS rows meet a panel at a time, one vector register file
full of accumulators; later rows find the panel in the cache, while the next one is being fetched.

    for each panel (threads take the next free one)
        for each group of rows
            for each input k
                accumulator[row] = fma(x[row, k], panel[k], accumulator[row])

Every output is one chain of fused multiply-adds in the order of the inputs, started from the bias: a row's result
does not depend on how many rows go with it, bit for bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any, no_type_check

import numba

from paceline.kernels.machine_code import FLOAT_BYTES, LANES, Code, claim, machine_code
from paceline.kernels.openmp import loop_body

MAX_ROWS = 6


def rows_times_panel(half: bool, half_rows: bool = False, ahead: bool = False) -> tuple[Any, ...]:
    """Products for exactly 1 .. MAX_ROWS rows; item i is for i + 1 rows.

    Each takes (x, bytes from one x row to the next, bytes from one input of a row to the next, panel, bytes from one
    input's weights to the next, inputs, address of the first sums, out, bytes of an out row, and with `ahead` what to
    fetch meanwhile and how many bytes of it for each input). `half` and `half_rows` say that panel and rows are
    bfloat16.
    """
    return tuple(machine_code(_product(rows, half, half_rows, ahead)) for rows in range(1, MAX_ROWS + 1))


def _product(rows: int, half: bool, half_rows: bool, ahead: bool) -> Any:
    def emit(code: Code, *integers: Any) -> None:
        x, x_row, x_step, panel, step, inputs, first, out, out_row, *fetched = integers
        starts = [code.at(x, code.integer(row), x_row) for row in range(rows)]

        def multiply(index: Any, sums: list[Any]) -> list[Any]:
            weights = code.load(code.at(panel, index, step), half)
            if ahead:
                code.prefetch(code.at(fetched[0], index, fetched[1]))
            return [
                code.fma(code.spread(code.at(start, index, x_step), half_rows), weights, total)
                for start, total in zip(starts, sums, strict=True)
            ]

        for row, total in enumerate(code.loop(inputs, [code.load(first)] * rows, multiply)):
            code.store(code.at(out, code.integer(row), out_row), total)

    return emit


def dispatch(products: tuple[Any, ...]) -> Any:
    """The product for a number of rows that is known only when it runs: (rows, the product's arguments)."""
    one, two, three, four, five, six = products

    @numba.njit(inline="always")
    @no_type_check
    def multiply(rows, arguments):
        if rows == 6:
            six(arguments)
        elif rows == 5:
            five(arguments)
        elif rows == 4:
            four(arguments)
        elif rows == 3:
            three(arguments)
        elif rows == 2:
            two(arguments)
        else:
            one(arguments)

    return multiply


@cache
def panel_product(half: bool) -> Any:
    """The loop over panels of float32, or of bfloat16 (`half`), for `openmp.run`.

    Its arguments: x Float32[n, i], n, i, the panels, how many, bias Float32[o], out Float32[n, o], o, the
    threads that share the panels.
    """
    multiply = dispatch(rows_times_panel(half, ahead=True))
    step = LANES * (2 if half else FLOAT_BYTES)
    lanes_bytes = LANES * FLOAT_BYTES

    @no_type_check
    def body(arguments):
        counter, x, rows, inputs, panels, num_panels, bias, out, outputs, threads = numba.carray(arguments, 10)
        groups = (rows + MAX_ROWS - 1) // MAX_ROWS
        size, larger = rows // groups, rows % groups
        x_row, out_row = inputs * FLOAT_BYTES, outputs * FLOAT_BYTES
        while True:
            panel = claim(counter)
            if panel >= num_panels:
                break
            weights, first = panels + panel * inputs * step, bias + panel * lanes_bytes
            x_at, out_at = x, out + panel * lanes_bytes
            # the panel that this thread is likely to take next, a share of it with each group
            fetched, fetched_step = weights + threads * inputs * step, step // groups
            for group in range(groups):
                count = size + 1 if group < larger else size
                multiply(
                    count,
                    (x_at, x_row, FLOAT_BYTES, weights, step, inputs, first, out_at, out_row, fetched, fetched_step),
                )
                fetched += inputs * fetched_step
                x_at += count * x_row
                out_at += count * out_row

    return loop_body(body)
