"""Work that processes can share: what a worker of another process must find by import."""

import functools
import multiprocessing
import os
import time
from pathlib import Path

from paceline.errors import InputError
from paceline.scale import map_in_processes


class Squarer:
    """Made once in each process; refuses 13, dies of 99, and takes a long time over 600."""

    def __init__(self, offset):
        self.offset = offset

    def __call__(self, number):
        if number == 13:
            raise InputError("13 came, but is refused.")
        if number == 99:
            os._exit(1)
        if number == 600:
            time.sleep(number)
        return number**2 + self.offset


make = functools.partial(Squarer, 1)


def refuses():
    """A worker that cannot be made."""
    raise InputError("device 'cuda:9' cannot be used here.")


def share_out_for_ever(path):
    """A parent of two workers, whose numbers it writes down."""
    for item, _ in map_in_processes(make, range(10**7), 2):
        if item == 3:
            Path(path).write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))
