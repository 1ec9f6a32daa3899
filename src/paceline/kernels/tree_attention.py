"""Attention of a few queries over many keys, on the host, for grouped heads and any mask.

Queries that share a key/value head fill the lanes of a vector, keys are taken one after another:

    scores[t, lane] = chain over the head dimension of key[t, k] * query[k, lane]
    weights = exp(score - largest score of the lane)
    out[lane, :] = chain over t of weight[t, lane] * value[t, :], over the sum of the weights

A hidden key has weight zero, which leaves every sum as it is, bit for bit. So a query's result depends on the keys
that it sees, in their order, and on nothing else: not on other queries, nor on the hidden keys between.

Letters: b rows, n queries per row, g query heads, k key/value heads, t keys, d head dimension.
"""

from __future__ import annotations

from functools import cache
from typing import Any, no_type_check

import numba
import torch
from jaxtyping import Float
from torch import Tensor

from paceline.kernels.machine_code import FLOAT_BYTES, LANES, Code, claim, machine_code, numbers
from paceline.kernels.openmp import loop_body, run
from paceline.kernels.panel_product import MAX_ROWS, dispatch, rows_times_panel

_LANES_BYTES = LANES * FLOAT_BYTES


def tree_attention(
    queries: Float[Tensor, "b n g d"],
    keys: Float[Tensor, "b k t d"],
    values: Float[Tensor, "b k t d"],
    mask: Float[Tensor, "b 1 n t"],
    scale: float,
) -> Float[Tensor, "b n g d"]:
    """softmax(scale * queries keys^T + mask) values, in float32.

    Queries and mask are float32, keys and values both float32 or both bfloat16; the head dimension is a multiple of
    LANES, and a head's dimensions lie side by side in every argument.
    """
    num_rows, width, heads, size = queries.shape
    kv_heads, span = keys.shape[1:3]
    blocks = -(-width * (heads // kv_heads) // LANES)
    tasks = num_rows * kv_heads * blocks
    queries = queries.mul(scale)
    out = torch.empty(num_rows, width, heads, size)
    scratch = torch.empty(torch.get_num_threads(), _scratch_floats(span, size))
    run(
        _kernel(keys.dtype == torch.bfloat16),
        tasks,
        *(tasks, blocks, width, heads, kv_heads, span, size),
        *(queries.data_ptr(), *queries.stride()[:2]),
        *(keys.data_ptr(), *keys.stride()[:3]),
        *(values.data_ptr(), *values.stride()[:3]),
        *(mask.data_ptr(), mask.stride(0), mask.stride(2)),
        *(out.data_ptr(), scratch.data_ptr(), scratch.shape[1]),
    )
    return out


def _scratch_floats(span: int, size: int) -> int:
    """What a thread writes down meanwhile: scores [t, lanes], queries [d, lanes], results [lanes, d], sums, zeros."""
    return (span + 2 * size + 2) * LANES


def _softmax(code: Code, scores: Any, count: Any, sums: Any) -> None:
    """Scores [count, lanes] become weights; their sums by lane, one key after another."""
    step = code.integer(_LANES_BYTES)

    def peak(index: Any, carried: list[Any]) -> list[Any]:
        return [code.larger(carried[0], code.load(code.at(scores, index, step)))]

    def weigh(index: Any, carried: list[Any]) -> list[Any]:
        place = code.at(scores, index, step)
        weight = code.exp(code.builder.fsub(code.load(place), largest))
        code.store(place, weight)
        return [code.builder.fadd(carried[0], weight)]

    (largest,) = code.loop(count, [code.vector(-3e38)], peak)
    (total,) = code.loop(count, [code.vector(0.0)], weigh)
    code.store(sums, total)


@numba.njit(inline="always")
@no_type_check
def _turn(queries, first, count, group, token_stride, size, panel):
    """Queries `first` and on become the lanes of a panel; lanes without a query are zero."""
    lanes = numbers(panel, (size, LANES))
    lanes[:] = 0
    for lane in range(count):
        token, head = (first + lane) // group, (first + lane) % group
        query = numbers(queries + (token * token_stride + head * size) * FLOAT_BYTES, size)
        for k in range(size):
            lanes[k, lane] = query[k]


@numba.njit(inline="always")
@no_type_check
def _add_mask(mask, first, count, group, token_stride, span, scores):
    lanes = numbers(scores, (span, LANES))
    for lane in range(count):
        row = numbers(mask + (first + lane) // group * token_stride * FLOAT_BYTES, span)
        for t in range(span):
            if row[t] != 0:
                lanes[t, lane] += row[t]


@numba.njit(inline="always")
@no_type_check
def _divide(found, sums, first, count, group, heads, size, out):
    totals = numbers(sums, LANES)
    for lane in range(count):
        token, head = (first + lane) // group, (first + lane) % group
        source = numbers(found + lane * size * FLOAT_BYTES, size)
        place = numbers(out + (token * heads + head) * size * FLOAT_BYTES, size)
        for k in range(size):
            place[k] = source[k] / totals[lane]


@cache
def _kernel(half: bool) -> Any:
    softmax = machine_code(_softmax)
    score = dispatch(rows_times_panel(half=False, half_rows=half))
    mix = dispatch(rows_times_panel(half=half))
    element = 2 if half else FLOAT_BYTES

    @no_type_check
    def body(arguments):
        counter, tasks, blocks, width, heads, kv_heads, span, size = numba.carray(arguments, 8)
        given = numba.carray(arguments, 25)
        queries, query_row, query_token, keys, key_row, key_head, key_slot = given[8:15]
        values, value_row, value_head, value_slot, mask, mask_row, mask_token = given[15:22]
        out, scratch, scratch_floats = given[22:25]
        group = heads // kv_heads
        key_bytes, value_bytes = key_slot * element, value_slot * element
        # the number after the counter deals out the parts of the scratch memory
        scores = scratch + claim(counter + 8) * scratch_floats * FLOAT_BYTES
        panel = scores + span * _LANES_BYTES
        found = panel + size * _LANES_BYTES
        sums = found + size * _LANES_BYTES
        zeros = sums + _LANES_BYTES
        numbers(zeros, LANES)[:] = 0
        while True:
            task = claim(counter)
            if task >= tasks:
                break
            row, kv_head, first = task // (kv_heads * blocks), task // blocks % kv_heads, task % blocks * LANES
            count = min(LANES, width * group - first)
            head_at = kv_head * group * size
            _turn(queries + (query_row * row + head_at) * FLOAT_BYTES, first, count, group, query_token, size, panel)
            key = keys + (row * key_row + kv_head * key_head) * element
            for t in range(0, span, MAX_ROWS):
                place = scores + t * _LANES_BYTES
                score(
                    min(MAX_ROWS, span - t),
                    (key + t * key_bytes, key_bytes, element, panel, _LANES_BYTES, size, zeros, place, _LANES_BYTES),
                )
            _add_mask(mask + mask_row * row * FLOAT_BYTES, first, count, group, mask_token, span, scores)
            softmax((scores, span, sums))
            value = values + (row * value_row + kv_head * value_head) * element
            for lane in range(0, count, MAX_ROWS):
                weights = scores + lane * FLOAT_BYTES
                for k in range(0, size, LANES):
                    place = found + (lane * size + k) * FLOAT_BYTES
                    mix(
                        min(MAX_ROWS, count - lane),
                        (
                            *(weights, FLOAT_BYTES, _LANES_BYTES, value + k * element, value_bytes, span),
                            *(zeros, place, size * FLOAT_BYTES),
                        ),
                    )
            _divide(
                found,
                sums,
                first,
                count,
                group,
                heads,
                size,
                out + (row * width * heads * size + head_at) * FLOAT_BYTES,
            )

    return loop_body(body)
