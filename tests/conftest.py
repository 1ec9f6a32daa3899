"""Slow tests run after all the fast ones, so that a plain `pytest` fails early."""

import pytest
from hypothesis import settings

# The first example of a property may wait for a compiler, so that its time says nothing.
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
