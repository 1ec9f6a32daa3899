"""Programs that a model wrote: run with their tests, in a process with limits."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paceline.prompt_sets import Reference

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """What one program may take: seconds of wall-clock, bytes of memory, bytes of each file that it writes."""

    seconds: float = 10.0
    memory: int = 1 << 30
    file_size: int = 1 << 20


def passes_tests(text: str, reference: Reference, limits: Limits | None = None) -> bool:
    """Whether the program in an answer passes the tests (pass@1 of greedy answers)."""
    return runs_through(f"{program_in(text, reference.stub)}\n\n{reference.tests}", limits or Limits())


def program_in(text: str, stub: str = "") -> str:
    """The first block of code of an answer, else all of it; after the stub where it does not repeat its function."""
    found = _BLOCK.search(text)
    code = found.group(1) if found else text
    names = re.findall(r"^def (\w+)\(", stub, re.MULTILINE)
    if not names or re.search(rf"^def {names[-1]}\(", code, re.MULTILINE):
        return _with_imports(stub, code)
    return f"{stub}{code}"


def _with_imports(stub: str, code: str) -> str:
    """A stub's imports go without saying."""
    imports = [line for line in stub.splitlines() if line.startswith(("import ", "from "))]
    return "\n".join([*imports, code])


def runs_through(program: str, limits: Limits) -> bool:
    """Whether a program comes to its end without an error, within the limits.

    It runs in a folder of its own that goes with it, without standard input and our environment, and where the system
    lets it, without a network. This keeps a careless program from doing harm; it is no wall against a hostile one. A
    program that leaves before its end, by `exit` for instance, has not come through.
    """
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="paceline-program-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("sandbox.py")), str(limits.memory),
             str(limits.file_size), str(limits.seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=folder, env={"HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8"}, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(f"{word}\n{program}".encode("utf-8", "replace"), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    return said.decode("ascii", "replace") == word


def _end(process: subprocess.Popen[bytes]) -> None:
    """The program and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
