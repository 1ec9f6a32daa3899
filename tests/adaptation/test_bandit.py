"""The bandit takes what pays, skips what does not, and never loses more than it may."""

import math

import numpy as np
import pytest

from paceline.adaptation.bandit import Arm, Bandit


def new_bandit(max_loss=0.02, seed=0, **gains):
    arms = [Arm("heads", 0.02, 0.05, 2.0), Arm("whole", 0.05, 0.1, 6.0)]
    return Bandit([arm for arm in arms if arm.name in gains or not gains], max_loss, seed)


def stream(bandit, gains, costs, queries=300, seconds=2.5, noise=0.03, seed=1):
    """Serve queries; a kept update makes all later ones faster. (seconds in all, updates taken)."""
    rng, speed, elapsed, taken = np.random.default_rng(seed), 1.0, 0.0, []
    for query in range(queries):
        elapsed += seconds / speed
        bandit.served(seconds / speed)
        arm = bandit.choose(elapsed, (queries - query - 1) * seconds / speed)
        if arm is not None:
            true = gains(arm, len(taken))
            original, before, after = rng.normal(0.0, noise / math.sqrt(2), 3)
            before, after = before + math.log(speed), after + math.log(speed) + true
            kept = after > before + noise
            speed *= math.exp(true) if kept else 1.0
            elapsed += costs[arm]
            bandit.saw(arm, after - before, noise, costs[arm], (after if kept else before) - original)
            taken.append(arm)
    return elapsed, taken


COSTS = {"heads": 2.0, "whole": 6.0}


@pytest.mark.parametrize("seed", range(8))
def test_where_updating_cannot_pay_no_more_is_lost_than_allowed(seed):
    for gain, noise in ((-0.05, 0.03), (0.0, 0.07)):
        elapsed, taken = stream(new_bandit(seed=seed), lambda arm, count, g=gain: g, COSTS, noise=noise, seed=seed)
        assert elapsed < 1.025 * 300 * 2.5 and len(taken) <= 9


@pytest.mark.parametrize("seed", range(8))
def test_where_updates_pay_they_are_taken(seed):
    elapsed, taken = stream(new_bandit(seed=seed), lambda arm, count: 0.15 * 0.5**count, COSTS, seed=seed)
    assert elapsed < 0.9 * 300 * 2.5 and len(taken) >= 2


def test_the_arm_that_saves_more_is_preferred_once_both_are_known():
    bandit = new_bandit(max_loss=1.0)
    for _ in range(6):
        bandit.saw("heads", 0.10, 0.03, 2.0, 0.1)
        bandit.saw("whole", 0.01, 0.03, 6.0, 0.1)
    chosen = [bandit.choose(1000.0, 500.0) for _ in range(250)]
    assert chosen.count("heads") > 0.9 * sum(arm is not None for arm in chosen) > 50


def test_near_the_end_nothing_is_worth_its_cost():
    bandit = new_bandit(max_loss=1.0)
    assert {bandit.choose(1000.0, 1.0) for _ in range(50)} == {None}


def test_what_updates_bring_back_is_counted_and_costs_that_were_measured_are_believed():
    bandit = new_bandit(max_loss=0.0)
    bandit.saw("whole", 0.1, 0.03, 20.0, 0.3)
    assert bandit.lost == 20.0 and bandit.arms["whole"].cost == pytest.approx(13.0)
    assert bandit.sure_gain == pytest.approx(0.3 - 3 * 0.03)
    bandit.served(50.0)
    assert bandit.lost == pytest.approx(20.0 - 50.0 * math.expm1(bandit.sure_gain))
    bandit.served(1000.0)
    assert bandit.lost == 0.0


def test_a_drift_makes_it_try_again():
    bandit = new_bandit(max_loss=1.0)
    for _ in range(10):
        for arm in ("heads", "whole"):
            bandit.saw(arm, -0.1, 0.03, COSTS[arm], 0.0)
    assert {bandit.choose(1000.0, 500.0) for _ in range(300)} == {None}
    bandit.drifted()
    assert {bandit.choose(1000.0, 500.0) for _ in range(20)} - {None}


def test_an_arm_is_tried_on_a_machine_that_is_faster_than_the_prior():
    bandit, elapsed, taken = new_bandit(max_loss=0.02, whole=None), 0.0, []
    for _ in range(400):
        elapsed += 0.1
        bandit.served(0.1)
        arm = bandit.choose(elapsed, elapsed)
        if arm is not None:
            taken.append(elapsed)
            bandit.saw(arm, 0.0, 0.03, 0.1, 0.0)
    assert taken and taken[0] < 30.0 and bandit.arms["whole"].cost < 1.0


def test_where_nothing_recurs_nothing_is_spent_and_where_all_does_it_is():
    def taken(recurring):
        bandits = [Bandit([Arm("whole", 0.3, 0.2, 3.0)], max_loss=1.0, seed=seed) for seed in range(100)]
        return sum(bandit.choose(300.0, 300.0, 1, recurring) is not None for bandit in bandits)

    assert taken(0.0) == 0 and taken(0.01) < 5 and taken(0.7) > 85


def test_a_gain_is_believed_for_what_recurred_when_it_was_measured():
    arm, half = Arm("whole", 0.3, 0.2, 3.0), Arm("whole", 0.3, 0.2, 3.0)
    arm.saw(0.4, 0.05, 3.0), half.saw(0.2, 0.025, 3.0, recurring=0.5)
    assert half.mean == pytest.approx(arm.mean) and 0.3 < arm.mean < 0.4
    assert half.variance == pytest.approx(arm.variance)
