"""Run as a script, by itself: limits a process, runs in it the program that comes on standard input, says a word after
it, and ends whatever the program started.

sandbox.py MEMORY FILE_SIZE SECONDS < word, newline, program

Nothing of paceline is imported: what is here is all that the program can reach of it.
"""

import contextlib
import math
import os
import resource
import signal
import sys
import time
import types
from pathlib import Path

_NEW_USER, _NEW_NETWORK, _ADOPT_ORPHANS = 0x10000000, 0x40000000, 36
_SECONDS_BETWEEN_LOOKS, _SECONDS_TO_END = 0.01, 2.0


def main() -> None:
    memory, file_size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    word, _, program = sys.stdin.buffer.read().decode().partition("\n")
    said = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    _system_call("prctl", _ADOPT_ORPHANS, 1)
    _system_call("unshare", _NEW_USER | _NEW_NETWORK)  # a network of its own has nobody in it
    child = os.fork()
    if child == 0:
        _run(program, memory, file_size, seconds)
        os.write(said, word.encode())
        os._exit(0)
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        _wait(child, seconds)
    finally:
        _end_children()


def _run(program: str, memory: int, file_size: int, seconds: float) -> None:
    """Does not return in what the program forks, nor after an error."""
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    own = os.getpid()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(program, "program.py", "exec"), vars(module))
    except BaseException:
        os._exit(1)
    if os.getpid() != own:
        os._exit(0)


def _wait(child: int, seconds: float) -> None:
    """Until it ends, or its time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _end_children() -> None:
    """Also those of children that are gone, which come to us where the system lets us adopt them."""
    deadline = time.monotonic() + _SECONDS_TO_END
    while time.monotonic() < deadline and (children := _children()):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _children() -> list[int]:
    """Of this process, by what the system says of every one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            found += [int(stat.parent.name)] if int(parent) == os.getpid() else []
    return found


def _system_call(name: str, *arguments: int) -> None:
    """What the system does not know or allow is left undone."""
    with contextlib.suppress(Exception):
        import ctypes

        getattr(ctypes.CDLL(None), name)(*arguments)


if __name__ == "__main__":
    main()
