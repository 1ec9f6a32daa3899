"""A changed stream rings soon, an unchanged one hardly ever."""

import numpy as np
import torch

from paceline.adaptation.drift import DriftDetector, NoveltyDetector


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


def queries(center, count, scatter, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 60, (count,), generator=generator).tolist()
    return [center + scatter * torch.randn(n, 32, generator=generator) for n in lengths]


def test_queries_that_begin_to_repeat_ring_within_a_few_and_those_that_stay_as_they_were_do_not():
    first, second = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    chat = queries(first, 80, 2.0, 1)
    detector = NoveltyDetector()
    assert not any(detector.saw(features) for features in chat)
    records = queries(second, 30, 0.1, 2)
    found = [query for query, features in enumerate(records) if detector.saw(features)]
    assert found and found[0] < 12 and len(found) == 1


def test_a_query_of_one_token_says_nothing():
    assert not NoveltyDetector().saw(torch.randn(1, 32))
