"""Policies against the best fixed plan and the oracle: right on times worked out by hand."""

import pytest

from paceline.bench.measurement import Measurement
from paceline.bench.method import Answer, Method
from paceline.bench.policy_comparison import compare_policies
from paceline.bench.table import results_table
from paceline.prompts import Prompt

SECONDS = {
    "plain": (9.0, 9.0, 9.0),
    "mixture": (2.0, 4.0, 4.0),
    "mixture+fixed:8:4": (4.0, 2.0, 3.0),
    "mixture+cost_aware": (2.0, 2.0, 2.0),
    "ddtree": (5.0, 5.0, 5.0),
    "ddtree+joint": (1.0, 1.0, 1.0),
}


class Named(Method):
    def __init__(self, name):
        self.name = name
        policy = name.partition("+")[2].split(":")[0] or "fixed"
        self.settings = {} if name == "plain" else {"policy": policy}

    @property
    def family(self):
        return self.name.partition("+")[0]

    def answer(self, prompt, settings):
        raise NotImplementedError


def measurements():
    prompts = [Prompt("made", str(i), "words") for i in range(3)]
    return [
        Measurement(name, prompt, 5, Answer((1,) * 10, seconds, None), (seconds,))
        for name, times in SECONDS.items()
        for prompt, seconds in zip(prompts, times, strict=True)
    ]


def test_each_policy_is_compared_with_every_fixed_plan_and_the_fastest_over_all_prompts_is_named():
    rows = compare_policies([Named(name) for name in SECONDS], measurements())
    best, other = rows[:2], rows[2:]
    assert (
        [row["method"] for row in best] == [row["method"] for row in other] == ["mixture+cost_aware", "mixture+oracle"]
    )
    assert {(row["over"], row["is_best"]) for row in best} == {("mixture+fixed:8:4", True)}  # 9 seconds against 10
    assert {(row["over"], row["is_best"]) for row in other} == {("mixture", False)}
    assert best[0]["ratio"] == pytest.approx(1.5)  # the median of 2, 1 and 1.5
    assert best[1]["ratio"] == pytest.approx(1.0)  # of 4 over 2, 2 over 2 and 3 over 3
    assert other[0]["ratio"] == pytest.approx(2.0)  # of 1, 2 and 2
    assert best[0]["low"] <= 1.5 <= best[0]["high"] + 1e-9


def test_without_two_fixed_plans_there_is_nothing_to_compare():
    methods = [Named(name) for name in ("plain", "ddtree", "ddtree+joint")]
    assert compare_policies(methods, measurements()) == []


@pytest.mark.parametrize("with_policies", [True, False])
def test_the_table_shows_the_comparison_where_there_is_one(with_policies, capsys):
    from rich.console import Console

    policies = compare_policies([Named(name) for name in SECONDS], measurements()) if with_policies else []
    Console(width=120).print(results_table([], {}, policies))
    assert ("over a fixed plan" in capsys.readouterr().out) == with_policies
