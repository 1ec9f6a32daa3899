"""Threads that stay where they are: a scheduler that moves them makes times that nobody can repeat."""

from __future__ import annotations

import os


def pin(threads: int | None) -> str:
    """Keep this process on as many cores as it has threads, and say which; all of them where `threads` is None.

    Where the system has no such call, or fewer cores are free to choose from, nothing is done.
    """
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned (this system cannot)"
    free = sorted(os.sched_getaffinity(0))
    if threads is None or threads >= len(free):
        return f"all {len(free)}"
    chosen = free[:threads]
    os.sched_setaffinity(0, chosen)
    return f"pinned to {', '.join(map(str, chosen))}"
