"""Work on this machine: in this process, or shared out among several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from paceline.errors import WorkerLostError

Item = TypeVar("Item")
Result = TypeVar("Result")
_SECONDS_BETWEEN_LOOKS = 1.0


def map_here(make: Callable[[], Callable[[Item], Result]], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """One after the other, in this process."""
    worker = make()
    for item in items:
        yield item, worker(item)


def map_in_processes(
    make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], num_workers: int
) -> Iterator[tuple[Item, Result]]:
    """In `num_workers` new processes, each of which calls `make` once. `make` and the items must be picklable.

    What is done when a worker raises is still handed out; then its error is raised here. Workers end with this process,
    however it ends.

    Raises:
        WorkerLostError: a worker died, for want of memory for instance.
    """
    rest = iter(items)
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(make, os.getpid())) as pool:
        running: dict[Future[Result], Item] = {}
        try:
            # two for each worker, so that none waits; not all, so that a failure stops the rest
            for item in islice(rest, 2 * num_workers):
                running[pool.submit(_work, item)] = item
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=lambda f: f.exception() is not None):
                    yield running.pop(future), future.result()
                    for item in islice(rest, 1):
                        running[pool.submit(_work, item)] = item
        except BrokenProcessPool as error:
            raise WorkerLostError("a worker process died (out of memory?); go on with fewer workers.") from error
        except Exception:
            raise
        except BaseException:  # who ends us does not wait for items, whose results nobody would take
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """The one worker of a process, or why it could not be made."""

    call: Callable[[Any], Any] | None = None
    error: Exception | None = None


def _start(make: Callable[[], Callable[[Any], Any]], parent: int) -> None:
    """Make the worker. An error is kept for the first item: one of an initializer would be lost."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the parent answers it
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        _Worker.call = staticmethod(make())
    except Exception as error:
        _Worker.error = error


def _work(item: Any) -> Any:
    if _Worker.error is not None:
        raise _Worker.error
    assert _Worker.call is not None, "started"
    return _Worker.call(item)


def _end_with(parent: int) -> None:
    """A killed parent says nothing to its children."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
