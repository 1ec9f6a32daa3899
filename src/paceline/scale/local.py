"""Work on this machine: in this process, or shared out among several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from paceline.errors import WorkerLostError

Item = TypeVar("Item")
Result = TypeVar("Result")
Make = Callable[[], Callable[[Any], Any]]
"""Makes a worker, once in each process: what takes long to load is loaded then."""


def map_here(make: Callable[[], Callable[[Item], Result]], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """One after the other, in this process."""
    worker = make()
    for item in items:
        yield item, worker(item)


def map_in_processes(
    make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], num_workers: int
) -> Iterator[tuple[Item, Result]]:
    """In `num_workers` new processes, each of which calls `make` once. `make` and the items must be picklable.

    Raises:
        WorkerLostError: a worker died, for want of memory for instance.
    """
    rest = iter(items)
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(make,)) as pool:
        running: dict[Future[Result], Item] = {}
        try:
            # two for each worker, so that none waits; not all, so that a failure stops the rest
            for item in islice(rest, 2 * num_workers):
                running[pool.submit(_work, item)] = item
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
                    for item in islice(rest, 1):
                        running[pool.submit(_work, item)] = item
        except BrokenProcessPool as error:
            raise WorkerLostError("a worker process died (out of memory?); go on with fewer workers.") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """The one worker of a process."""

    call: Callable[[Any], Any]


def _start(make: Make) -> None:
    _Worker.call = staticmethod(make())


def _work(item: Any) -> Any:
    return _Worker.call(item)
