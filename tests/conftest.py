"""Slow tests run after all the fast ones, so that a plain `pytest` fails early."""

import pytest
from hypothesis import settings

# The first example of a property may wait for a compiler, so that its time says nothing.
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--peers", action="store_true", help="run the tests that install other servers")
    parser.addoption("--peers-venv", metavar="FOLDER", help="virtual environment of the peers; a new one if not given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--peers"):
        peers = [item for item in items if item.get_closest_marker("peers") is not None]
        config.hook.pytest_deselected(items=peers)
        items[:] = [item for item in items if item not in peers]
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
