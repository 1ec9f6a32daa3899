"""Shared work: the same results wherever it is done, and a sentence where a worker is lost."""

import multiprocessing
import time
from pathlib import Path

import pytest

from paceline.errors import InputError, WorkerLostError
from paceline.scale import map_here, map_in_processes
from shared_work import make, refuses, share_out_for_ever


def test_every_item_is_done_once_wherever_it_is_done():
    expected = [(n, n**2 + 1) for n in range(7)]
    assert list(map_here(make, range(7))) == expected
    assert sorted(map_in_processes(make, range(7), 2)) == expected


def test_an_error_of_a_worker_is_the_callers():
    with pytest.raises(InputError, match="13 came"):
        list(map_in_processes(make, [1, 13], 2))


def test_an_error_in_making_a_worker_is_the_callers_too():
    with pytest.raises(InputError, match="cuda:9"):
        list(map_in_processes(refuses, [1, 2], 2))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=share_out_for_ever, args=(tmp_path / "pids",))
    process.start()
    deadline = time.monotonic() + 120
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    process.kill()
    process.join()
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert workers


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_dies_is_one_sentence():
    with pytest.raises(WorkerLostError, match="fewer workers"):
        list(map_in_processes(make, [1, 99, 2], 2))


def test_nobody_waits_for_items_whose_results_will_not_be_taken():
    started = time.monotonic()
    done = map_in_processes(make, [1, 600, 600, 600], 2)
    assert next(done) == (1, 2)
    workers = [child.pid for child in multiprocessing.active_children()]
    done.close()
    assert len(workers) == 2 and not any(map(alive, workers))
    assert time.monotonic() - started < 120
