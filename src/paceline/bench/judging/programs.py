"""Programs that a model wrote: run with their tests, in a process with limits."""

from __future__ import annotations

import ast
import builtins
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

_LANGUAGES = ("", "python", "py", "python3")
_THOUGHT = "</think>"
_SECONDS_TO_END = 10.0
"""What the process that watches over a program has left once the program's time is over."""


@dataclass(frozen=True)
class Limits:
    """What one program may take: seconds of wall-clock, bytes of memory, bytes of each file that it writes."""

    seconds: float = 10.0
    memory: int = 1 << 30
    file_size: int = 1 << 20


def passes_tests(text: str, reference: Reference, limits: Limits | None = None) -> bool:
    """Whether the program in an answer passes the tests (pass@1 of greedy answers)."""
    return runs_through(f"{program_in(text, reference)}\n\n{reference.tests}", limits or Limits())


def program_in(text: str, reference: Reference) -> str:
    """The first block of Python of an answer (after what was thought aloud), else all of it, after the stub.

    A stub ends with the head of a function: what does not repeat it goes on with it. Where the tests call a function
    that the program does not have, because nobody told its name, they mean the last one that it has.
    """
    said = text.rpartition(_THOUGHT)[2]
    code = _first_block(said) or said
    heads = re.findall(r"^def (\w+)\(", reference.stub, re.MULTILINE)
    if heads and not re.search(rf"^def {heads[-1]}\(", code, re.MULTILINE):
        return reference.stub + code
    stub = f"{reference.stub}\n    pass\n" if heads else reference.stub
    return f"{stub}\n{code}{_alias(code, reference.tests)}"


def _first_block(text: str) -> str | None:
    """Between the first fence that opens Python and the next one, or the end."""
    inside: list[str] | None = None
    language: str | None = None
    for line in text.splitlines():
        if not line.lstrip().startswith("```"):
            if inside is not None:
                inside.append(line)
        elif language is None:
            language = line.strip().removeprefix("```").strip().lower()
            inside = [] if language in _LANGUAGES else None
        elif inside is not None:
            break
        else:
            language = None
    return None if inside is None else "\n".join(inside)


def _alias(code: str, tests: str) -> str:
    """The name that the tests call, for the last function of a program that has another."""
    try:
        defined = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
        tree = ast.parse(tests)
    except (SyntaxError, ValueError):
        return ""
    made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    called = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    unknown = [name for name in called if name not in made and not hasattr(builtins, name)]
    if not defined or not unknown or unknown[0] in defined or unknown[0] in code:
        return ""
    return f"\n\n{unknown[0]} = {defined[-1]}"


def runs_through(program: str, limits: Limits) -> bool:
    """Whether a program comes to its end without an error, within the limits.

    It runs in a folder of its own that goes with it, without standard input and our environment, and where the system
    lets it, without a network. This keeps a careless program from doing harm; it is no wall against a hostile one. A
    program that leaves before its end, by `exit` for instance, has not come through; one that comes to its end has,
    whatever it leaves running, which is ended.
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
            text = f"{word}\n{program}".encode("utf-8", "replace")
            said, _ = process.communicate(text, timeout=limits.seconds + _SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    return said.decode("ascii", "replace") == word


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process that watches over the program, which ends whatever that started, and all of its group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
