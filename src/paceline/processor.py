"""The processor by name, which Python itself does not tell everywhere."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name() -> str:
    """Such as "AMD EPYC 9654"; the architecture where the system tells no more."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not a Linux
    return platform.processor() or platform.machine()
