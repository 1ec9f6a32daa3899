"""Threads stay on as many cores as there are of them, and the record says on which."""

import os

import pytest

from paceline.bench.pinning import pin


@pytest.fixture
def cores(monkeypatch):
    """Eight cores, of which the system keeps 0; what was asked for is returned."""
    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1, 8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, chosen: asked.append(chosen))
    return asked


def test_a_process_stays_on_as_many_cores_as_it_has_threads(cores):
    assert pin(3) == "pinned to 1, 2, 3"
    assert cores == [[1, 2, 3]]


@pytest.mark.parametrize("threads", [None, 7, 64])
def test_where_every_core_is_wanted_nothing_is_done(cores, threads):
    assert pin(threads) == "all 7"
    assert cores == []


def test_a_system_without_the_call_is_left_alone(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    assert "not pinned" in pin(2)
