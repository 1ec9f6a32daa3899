"""Threads that stay where they are: a scheduler that moves them makes times that nobody can repeat."""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def pin(threads: int | None, part: int = 0) -> str:
    """Keep this process on as many processors as it has threads, and say which; cores before their second threads.

    `part` is this process's number among those of the machine that are pinned: each gets processors of its own. Where
    `threads` is None, or there are not that many processors left, or the system has no such call, nothing is done.
    """
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned (this system cannot)"
    free = _cores_first(sorted(os.sched_getaffinity(0)))
    if threads is None or threads < 1 or (threads >= len(free) and part == 0):
        return f"all {len(free)}"
    chosen = free[part * threads : (part + 1) * threads]
    if len(chosen) < threads:
        return f"not pinned (too few of {len(free)} are left)"
    os.sched_setaffinity(0, chosen)
    return f"pinned to {', '.join(map(str, sorted(chosen)))}"


def _cores_first(processors: list[int], topology: Path = _TOPOLOGY) -> list[int]:
    """The first hardware thread of every core, then the others; in their order where the system does not say."""
    seen: dict[str, int] = {}
    turns = []
    for processor in processors:
        path = topology / f"cpu{processor}" / "topology" / "thread_siblings_list"
        core = path.read_text().strip() if path.exists() else str(processor)
        turns.append(seen.get(core, 0))
        seen[core] = turns[-1] + 1
    return [processor for _, processor in sorted(zip(turns, processors, strict=True))]
