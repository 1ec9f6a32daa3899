import time

import pytest

from paceline.metrics import StageClock, acceptance_length, paired_speedup, repetition_rate


def test_acceptance_length_counts_the_bonus():
    assert acceptance_length(accepted=6, rounds=4) == 2.5
    assert acceptance_length(accepted=0, rounds=0) == 0.0


def test_speedup_is_the_median_paired_ratio_inside_its_interval():
    ratio, low, high = paired_speedup([2.0, 4.0, 9.0, 8.0, 2.0], [1.0, 2.0, 3.0, 4.0, 2.0])
    assert ratio == 2.0
    assert 1.0 <= low <= ratio <= high <= 3.0


def test_equal_ratios_have_an_interval_of_no_width():
    assert paired_speedup([1.0, 2.0, 4.0], [2.0, 4.0, 8.0]) == (0.5, 0.5, 0.5)


def test_repetition_counts_ngrams_seen_before():
    assert repetition_rate([1, 2, 3, 4, 5, 6], n=2) == 0.0
    assert repetition_rate([1, 2, 1, 2, 1], n=2) == pytest.approx(0.5)
    assert repetition_rate([1], n=4) == 0.0


def test_laps_add_up_to_the_time_between_start_and_last_lap():
    clock = StageClock()
    clock.start()
    started = time.perf_counter()
    for stage in ("draft", "verify", "draft"):
        time.sleep(0.01)
        clock.lap(stage)
    passed = time.perf_counter() - started
    assert set(clock.seconds) == {"draft", "verify"}
    assert sum(clock.seconds.values()) == pytest.approx(passed, abs=0.005)
    assert clock.seconds["draft"] >= 0.02
