"""Shared work: the same results wherever it is done, and a sentence where a worker is lost."""

import functools
import os

import pytest

from paceline.errors import InputError, WorkerLostError
from paceline.scale import map_here, map_in_processes


class Squarer:
    """Loads slowly, in the sense that it is made once; refuses 13, dies of 99."""

    def __init__(self, offset):
        self.offset = offset

    def __call__(self, number):
        if number == 13:
            raise InputError("13 came, but is refused.")
        if number == 99:
            os._exit(1)
        return number**2 + self.offset


make = functools.partial(Squarer, 1)


def test_every_item_is_done_once_wherever_it_is_done():
    expected = [(n, n**2 + 1) for n in range(7)]
    assert list(map_here(make, range(7))) == expected
    assert sorted(map_in_processes(make, range(7), 2)) == expected


def test_an_error_of_a_worker_is_the_callers():
    with pytest.raises(InputError, match="13 came"):
        list(map_in_processes(make, [1, 13], 2))


def test_a_worker_that_dies_is_one_sentence():
    with pytest.raises(WorkerLostError, match="fewer workers"):
        list(map_in_processes(make, [1, 99, 2], 2))
