"""A changed stream rings soon, an unchanged one hardly ever."""

import numpy as np

from paceline.adaptation.drift import DriftDetector


def alarms(values):
    detector = DriftDetector()
    return [query for query, value in enumerate(values) if detector.saw(value)]


def test_a_fall_and_a_rise_ring_within_a_few_queries():
    rng = np.random.default_rng(0)
    for before, after in ((2.2, 1.4), (1.4, 2.2)):
        values = np.concatenate([rng.normal(before, 0.25, 100), rng.normal(after, 0.25, 60)])
        found = alarms(values)
        assert found and 100 <= found[0] < 112


def test_neither_unit_nor_scatter_matters():
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(0.7, 0.2, 60), rng.normal(0.3, 0.2, 60)])
    assert alarms(values) == alarms(10 * values) != []


def test_an_unchanged_stream_rings_hardly_ever():
    rng = np.random.default_rng(1)
    assert sum(len(alarms(rng.normal(1.8, 0.25, 300))) for _ in range(20)) <= 4
