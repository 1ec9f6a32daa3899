"""Compilation of the host's loops, kept between runs wherever there is a place to keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def host_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.njit`, cached on disk; without the cache where nothing can be written (a read-only installation)."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)
