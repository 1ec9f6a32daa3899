"""Work on a Ray cluster: actors that hold what takes long to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from paceline.errors import InputError, WorkerLostError

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_on_ray(
    make: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    num_workers: int,
    address: str | None = None,
    num_gpus: float = 0.0,
) -> Iterator[tuple[Item, Result]]:
    """On `num_workers` actors, each of which calls `make` once and has `num_gpus` of a GPU to itself.

    `address` names a running cluster; None starts one on this machine and stops it at the end.

    Raises:
        InputError: Ray is not installed, or there is no cluster at this address.
        WorkerLostError: an actor died.
    """
    ray = _ray()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except ConnectionError as error:
        raise InputError(f"there is no Ray cluster at {address!r}; start one, or leave the address out.") from error
    try:
        yield from _map(ray, make, items, num_workers, num_gpus)
    except ray.exceptions.RayActorError as error:
        raise WorkerLostError("a Ray worker died (out of memory?); go on with fewer workers.") from error
    finally:
        ray.shutdown()


def _map(
    ray: Any, make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], num_workers: int, num_gpus: float
) -> Iterator[tuple[Item, Result]]:
    actor = ray.remote(num_gpus=num_gpus)(_Actor)
    idle = [actor.remote(make) for _ in range(num_workers)]
    rest = iter(items)
    running: dict[Any, tuple[Item, Any]] = {}

    def hand_out() -> None:
        for item in islice(rest, len(idle)):
            worker = idle.pop()
            running[worker.work.remote(item)] = (item, worker)

    hand_out()
    while running:
        (ready,), _ = ray.wait(list(running), num_returns=1)
        item, worker = running.pop(ready)
        yield item, _result(ray, ready)
        idle.append(worker)
        hand_out()


def _result(ray: Any, reference: Any) -> Any:
    """What a worker returned; its own errors as they were raised there."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, Exception) else error from None


class _Actor:
    """Holds one worker."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]):
        self._worker = make()

    def work(self, item: Any) -> Any:
        return self._worker(item)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("--ray needs the package ray; pip install 'paceline[ray]'.") from error
    return ray
