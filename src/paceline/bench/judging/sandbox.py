"""Run as a script, by itself: limits this process, runs the program that comes on standard input, says a word after it.

sandbox.py MEMORY FILE_SIZE SECONDS < word, newline, program

Nothing of paceline is imported: what is here is all that the program can reach of it.
"""

import contextlib
import math
import os
import resource
import sys

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


def main() -> None:
    memory, file_size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    word, _, program = sys.stdin.buffer.read().decode().partition("\n")
    said = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    _leave_the_network()
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    os.write(said, word.encode())


def _leave_the_network() -> None:
    """A network of its own has nobody in it; where the system does not give one, the program keeps ours."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)


if __name__ == "__main__":
    main()
