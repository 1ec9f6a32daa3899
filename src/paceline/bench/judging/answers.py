"""Results of calculations: the last one in the text, compared as mathematics and not as words."""

from __future__ import annotations

import logging
import multiprocessing
import sys
from multiprocessing.connection import Connection

_SECONDS, _MEMORY = 20.0, 4 << 30


def is_same_result(text: str, right: str, seconds: float = _SECONDS) -> bool:
    """Whether the answer's result is the right one, as math-verify reads both.

    In a process of its own: expressions of a model can take any time and memory to simplify. What takes longer than
    `seconds`, or more than 4 GiB, is wrong.
    """
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_compare, args=(sending, text, right), daemon=True)
    process.start()
    sending.close()
    try:
        return receiving.poll(seconds) and bool(receiving.recv())
    except EOFError:  # it died
        return False
    finally:
        process.kill()
        process.join()
        receiving.close()


def _compare(sending: Connection, text: str, right: str) -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    logging.disable()  # of limits of time that are switched off for ours
    from math_verify import parse, verify

    gold = parse(f"${right}$", parsing_timeout=0)
    sending.send(verify(gold, parse(text, parsing_timeout=0), timeout_seconds=0))
