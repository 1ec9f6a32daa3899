"""Work on a Ray cluster: actors that hold what takes long to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from paceline.errors import InputError, WorkerLostError

Item = TypeVar("Item")
Result = TypeVar("Result")
LOCAL = "local"
"""In place of a cluster's address: Ray on this machine, started for this work and stopped after it."""


def map_on_ray(
    make: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    num_workers: int,
    address: str = LOCAL,
    num_gpus: float = 0.0,
) -> Iterator[tuple[Item, Result]]:
    """On `num_workers` actors, spread over the nodes of the cluster, each of which calls `make` once.

    An actor has `num_gpus` of a GPU, and its even share of the cluster's CPUs, to itself. `make` must find what it
    loads on every node.

    Raises:
        InputError: Ray is not installed, there is no cluster at this address, or it has too few CPUs or GPUs.
        WorkerLostError: an actor died.
    """
    ray = _ray()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"there is no Ray cluster at {address!r}; start one, or give {LOCAL!r}.") from error
    try:
        yield from _map(ray, make, items, _actors(ray, num_workers, num_gpus))
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
        raise WorkerLostError("a Ray worker died (out of memory?); go on with fewer workers.") from error
    finally:
        ray.shutdown()


def _actors(ray: Any, count: int, num_gpus: float) -> list[Any]:
    """Actor classes cannot wait for ever for what the cluster does not have: refused before any is asked for."""
    there = ray.cluster_resources()
    gpus, cpus = there.get("GPU", 0.0), int(there.get("CPU", 0.0))
    if num_gpus * count > gpus:
        raise InputError(f"{count} workers with {num_gpus} GPUs each came, but the cluster has {gpus:g}; ask for less.")
    if count > cpus:
        raise InputError(f"{count} workers came, but the cluster has {cpus} CPUs; ask for at most as many.")
    options = {"num_cpus": cpus // count, "num_gpus": num_gpus, "scheduling_strategy": "SPREAD"}
    try:
        actor = ray.remote(**options)(_Actor)
    except ValueError as error:
        raise InputError(f"Ray cannot give {num_gpus} GPUs to a worker: {error}.") from error
    return [actor.remote() for _ in range(count)]


def _map(
    ray: Any, make: Callable[[], Callable[[Item], Result]], items: Iterable[Item], workers: list[Any]
) -> Iterator[tuple[Item, Result]]:
    rest = iter(items)
    starting = {worker.start.remote(make): worker for worker in workers}
    running: dict[Any, tuple[Item, Any]] = {}
    while starting or running:
        (ready,), _ = ray.wait([*running, *starting], num_returns=1)
        if ready in starting:
            worker = starting.pop(ready)
            _result(ray, ready)
        else:
            item, worker = running.pop(ready)
            yield item, _result(ray, ready)
        for item in islice(rest, 1):
            running[worker.work.remote(item)] = (item, worker)


def _result(ray: Any, reference: Any) -> Any:
    """What a worker returned; its own errors as they were raised there."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, Exception) else error from None


class _Actor:
    """Holds one worker."""

    def start(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        """Made in a call of its own: an error of a constructor would be reported as a death."""
        self._worker = make()

    def work(self, item: Any) -> Any:
        return self._worker(item)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("--ray needs the package ray; pip install 'paceline[ray]'.") from error
    return ray
