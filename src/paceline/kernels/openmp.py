"""Compiled loops on the OpenMP threads that PyTorch itself uses.

A second pool of threads would fight with PyTorch's waiting ones for the cores.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numba
import torch
from numba import types

_INT_BYTES = 8


def loop_body(function: Any) -> Any:
    """Compile `function(arguments)`; it takes the address of its Int64 arguments, the first of which is a counter."""
    return numba.cfunc(types.void(types.CPointer(types.int64)))(function)


def run(body: Any, tasks: int, *arguments: int) -> None:
    """Let as many threads as there are tasks and PyTorch allows run `body`, each claiming the next free task.

    Raises OSError where PyTorch has no GNU OpenMP runtime.
    """
    # the counter's address, the arguments, and the counter itself (with one more number of the body's own)
    values = _array(len(arguments) + 3)(0, *arguments)
    start = ctypes.addressof(values)
    values[0] = start + (len(arguments) + 1) * _INT_BYTES
    _parallel()(body.address, start, max(1, min(torch.get_num_threads(), tasks)), 0)


@cache
def is_available() -> bool:
    """Whether compiled loops run here, and fast: with fused multiply-adds in vectors of eight or more."""
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return False
    try:
        _parallel()
    except OSError:
        return False
    return True


@cache
def _array(length: int) -> type[ctypes.Array[ctypes.c_int64]]:
    return ctypes.c_int64 * length


@cache
def _parallel() -> Any:
    """`GOMP_parallel` of the runtime that PyTorch has loaded (GNU's, on Linux)."""
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except FileNotFoundError:
        mapped = []
    paths = {line.split(maxsplit=5)[-1] for line in mapped if "libgomp" in line}
    of_torch = sorted(path for path in paths if "torch" in path) or sorted(paths)
    if not of_torch:
        raise OSError("PyTorch has loaded no GNU OpenMP runtime")
    start = ctypes.CDLL(of_torch[0]).GOMP_parallel
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return start
