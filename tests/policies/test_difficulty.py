"""The posterior over a request's difficulty."""

import numpy as np
import pytest
import torch

from paceline.policies.calibration import Outcome, Steps
from paceline.policies.difficulty import GRID, Difficulty
from paceline.tree import DraftTree


def odds_shifted(chance, by):
    odds = chance / (1 - chance) * np.exp(-by)
    return odds / (1 + odds)


@pytest.mark.parametrize("truth", [-1.0, 0.0, 1.5])
def test_rounds_show_how_hard_a_request_is(truth):
    rng = np.random.default_rng(0)
    difficulty = Difficulty(spread=1.0)
    for _ in range(300):
        chance = rng.uniform(0.2, 0.9)
        difficulty.saw([Outcome(1, chance, bool(rng.random() < odds_shifted(chance, truth)))])
    assert difficulty.mean == pytest.approx(truth, abs=0.6)


def test_the_posterior_is_bayes_rule():
    difficulty = Difficulty(mean=0.5, spread=1.0)
    difficulty.saw([Outcome(1, 0.7, True), Outcome(2, 0.4, False)])
    prior = np.exp(-0.5 * (GRID - 0.5) ** 2)
    expected = prior * odds_shifted(0.7, GRID) * (1 - odds_shifted(0.4, GRID))
    assert difficulty.weights == pytest.approx(expected / expected.sum())


def test_before_any_round_the_prior_holds_and_rounds_long_ago_fade():
    fresh, old = Difficulty(mean=1.0), Difficulty(mean=1.0)
    assert fresh.mean == pytest.approx(1.0, abs=0.01)
    for _ in range(20):
        old.saw([Outcome(1, 0.5, True)])
    assert old.mean < 0.7
    for _ in range(300):
        old.saw([])
    assert old.mean == pytest.approx(fresh.mean, abs=0.01)


def test_chances_follow_the_difficulty_and_stay_chances():
    log_probs = torch.tensor([0.5, 0.3, 0.2, 0.19]).log()
    steps = Steps.of(DraftTree(torch.arange(4), torch.tensor([0, 0, 1, 3]), log_probs))
    easy, typical, hard = (np.array(Difficulty(d, 0.05).along_paths(steps)) for d in (-2.0, 0.0, 2.0))
    assert typical == pytest.approx([0.5, 0.3, 0.2, 0.19], rel=0.02)
    assert (easy > typical).all() and (hard < typical).all()
    for found in (easy, typical, hard):
        assert found[0] + found[1] < 1 and found[2] <= found[0] and found[3] <= found[2]
    assert hard[:2].sum() == pytest.approx(odds_shifted(0.8, 2.0), rel=0.02)  # siblings share the chance of a hit
    assert Difficulty(2.0, 0.05).chances([0.8]) == pytest.approx([odds_shifted(0.8, 2.0)], rel=0.02)
    assert len(Difficulty().along_paths(Steps.of(DraftTree.empty()))) == 0


def test_a_drafter_that_is_certain_and_wrong_breaks_nothing():
    difficulty = Difficulty()
    for _ in range(50):
        difficulty.saw([Outcome(1, 1.0, False), Outcome(1, 0.0, True)])
    assert np.isfinite(difficulty.weights).all() and difficulty.weights.sum() == pytest.approx(1.0)
