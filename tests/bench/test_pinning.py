"""Threads stay on as many processors as there are of them, and the record says on which."""

import os

import pytest

from paceline.bench import pinning
from paceline.bench.pinning import pin


@pytest.fixture
def cores(monkeypatch, tmp_path):
    """Eight processors of four cores (0 and 4, 1 and 5, ...), of which the system keeps 0; what was asked for is
    returned."""
    asked = []
    for processor in range(8):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{processor % 4},{processor % 4 + 4}\n")
    cores_first = pinning._cores_first
    monkeypatch.setattr(pinning, "_cores_first", lambda processors: cores_first(processors, tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1, 8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, chosen: asked.append(sorted(chosen)))
    return asked


def test_a_process_has_cores_of_its_own_before_their_second_threads(cores):
    assert pin(3) == "pinned to 1, 2, 3"
    assert pin(4) == "pinned to 1, 2, 3, 4"
    assert cores == [[1, 2, 3], [1, 2, 3, 4]]


def test_processes_of_one_machine_do_not_share_processors(cores):
    assert [pin(3, part) for part in range(2)] == ["pinned to 1, 2, 3", "pinned to 4, 5, 6"]
    assert "too few" in pin(3, 2)
    assert cores == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("threads", [None, 0, 7, 64])
def test_where_every_processor_is_wanted_nothing_is_done(cores, threads):
    assert pin(threads) == "all 7"
    assert cores == []


def test_a_system_without_the_call_is_left_alone(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    assert "not pinned" in pin(2)
