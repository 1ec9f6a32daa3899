"""Slow tests run after all the fast ones, so that a plain `pytest` fails early."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
