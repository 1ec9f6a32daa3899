"""Cost-aware budgets: nodes as long as they pay, none where none do, and the text stays what it was."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.errors import CheckpointError
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.base import DraftView, Plan, PromptView, RoundView, SequenceView
from paceline.policies.calibration import Calibration, Outcome, Steps
from paceline.policies.cost_aware import IDLE, CostAwarePolicy
from paceline.policies.costs import Costs, Curve, LiveCosts
from paceline.policies.pace import PROBE_EVERY, Pace
from paceline.tree import DraftTree
from paceline.types import GenerationSettings, Statistics
from tiny_models import RandomTreeDrafter, tiny_target

#: A pass takes 50 ms up to 8 rows and 1 ms for each more; a draft 5 ms; the rest 1 ms.
COSTS = Costs((64,), (Curve((1, 8, 40), (0.050, 0.050, 0.082)),), Curve((8,), (0.005,)), 0.001)


def chain(*chances):
    """A chain whose nodes have these chances of being reached."""
    log_probs = torch.tensor([math.log(c) for c in chances])
    count = len(chances)
    return DraftTree(torch.arange(count), torch.arange(count), log_probs.float())


def view(tree, pace=None, budget=16, **settings):
    sequence = SequenceView(GenerationSettings(**settings), Statistics(), pace or Pace())
    return DraftView(sequence, 64, Plan(8, budget), tree)


def policy(costs=COSTS, **options):
    return CostAwarePolicy(costs, 8, 32, **options)


def seconds(num_sequences, count):
    return COSTS.verify_s(num_sequences * (1 + count), 64) + 0.005 + 0.001


def rate(num_sequences, gains, count):
    return (num_sequences + sum(gains[:count])) / seconds(num_sequences, count)


def worth(num_sequences, gains, count, speed=1.2):
    """Tokens of a round, less those that its seconds bring elsewhere; 1.2 is expected before anything was seen."""
    per_second = num_sequences * speed / (COSTS.verify_s(num_sequences, 64) + 0.001)
    return num_sequences + sum(gains[:count]) - per_second * seconds(num_sequences, count)


@pytest.mark.parametrize("seed", range(5))
def test_the_budget_is_where_tokens_beyond_what_the_seconds_are_worth_are_most(seed):
    chances = np.sort(np.random.default_rng(seed).uniform(0.001, 0.9, 30))[::-1].tolist()
    (count,) = policy(calibrate=False).limit([view(chain(*chances))])
    gains = Steps.of(chain(*chances)).along_paths()  # no step of which is quite certain
    assert count == max(range(31), key=lambda n: worth(1, gains, n))


@pytest.mark.slow
def test_over_rounds_good_and_bad_more_tokens_come_in_the_time_than_by_each_rounds_own_ratio():
    steep = Costs((64,), (Curve((1, 33), (0.050, 0.210)),), Curve((8,), (0.005,)), 0.001)
    rng = np.random.default_rng(0)
    drafts = [[0.95 * b**i for i in range(32)] for b in rng.choice([0.5, 0.95], 600)]

    def took(gains, count):
        return 1 + sum(gains[:count]), steep.verify_s(1 + count, 64) + 0.006

    def total(counts):
        found = np.array([took(gains, count) for gains, count in zip(drafts, counts, strict=True)])[100:].sum(0)
        return found[0] / found[1]

    aware, pace, counts = policy(steep, calibrate=False), Pace(), []
    for gains in drafts:
        draft = view(chain(*gains), pace)
        (count,) = aware.limit([draft])
        counts.append(count)
        path = list(range(1, 1 + int(rng.random() < 0.95) * round(sum(gains[:count]))))
        aware.learn(outcome(view(draft.tree.first(count), pace), path, verify_s=steep.verify_s(1 + count, 64)))
    ratios = [max(range(33), key=lambda n, g=gains: np.divide(*took(g, n))) for gains in drafts]
    best = 0.0
    for _ in range(20):  # Dinkelbach
        plan = [max(range(33), key=lambda n, g=gains: took(g, n)[0] - best * took(g, n)[1]) for gains in drafts]
        best = total(plan)
    assert total(counts) > total(ratios) and total(counts) > 0.98 * best


def test_free_rows_are_used_and_dear_ones_only_where_they_pay():
    aware = policy(calibrate=False)
    assert aware.limit([view(chain(*[0.01] * 20))]) == [7]  # 8 rows cost what one costs
    assert aware.limit([view(chain(*[0.5] * 20))]) == [20]
    assert aware.limit([view(DraftTree.empty())]) == [0]


def test_the_trees_of_a_batch_share_the_pass():
    certain, hopeless = chain(*[0.9] * 12), chain(*[1e-6] * 12)
    alone = policy(calibrate=False).limit([view(certain)])
    both = policy(calibrate=False).limit([view(certain), view(hopeless)])
    gains = [0.9 + 1e-6] * 12
    assert both == [max(range(13), key=lambda n: worth(2, gains, n))] * 2
    assert policy(calibrate=False).limit([view(hopeless)] * 4) != [12] * 4 and alone == [12]


def outcome(draft, path, draft_s=0.005, verify_s=0.05):
    return RoundView([draft], [path], draft_s, verify_s, 0.001)


def rounds(aware, pace, accepted, count=40, copied=0):
    """Play rounds whose drafts are accepted `accepted` deep, and `copied` deep while the network rests; how many
    rounds it drafted in."""
    drafted = 0
    for _ in range(count):
        sequence = SequenceView(GenerationSettings(), Statistics(), pace)
        plan = aware.choose(sequence)
        is_drafted = plan.block_size > IDLE
        tree = chain(0.5, 0.25) if is_drafted else chain(*[0.9] * copied)
        draft = DraftView(sequence, 64, plan, tree)
        kept = accepted if is_drafted else copied
        aware.learn(outcome(draft, list(range(1, kept + 1)), 0.005 if is_drafted else 0.0))
        drafted += is_drafted
    return drafted


def test_drafts_that_bring_nothing_stop_and_are_tried_now_and_then():
    aware, pace = policy(), Pace()
    drafted = rounds(aware, pace, accepted=0, count=300)
    assert 4 < drafted < 30
    assert pace.next_rest == PROBE_EVERY


def test_drafts_that_bring_something_go_on():
    assert rounds(policy(), Pace(), accepted=1) == 40


def test_a_sequence_that_becomes_easy_drafts_again():
    aware, pace = policy(), Pace()
    rounds(aware, pace, accepted=0, count=100)
    assert rounds(aware, pace, accepted=2, count=200) > 100


def test_what_needs_no_network_is_preferred_where_it_brings_as_much():
    assert rounds(policy(), Pace(), accepted=1, count=200) == 200
    aware, pace = policy(), Pace()
    rounds(aware, pace, accepted=0, copied=3, count=20)  # the network rests, and copies turn out well
    assert rounds(aware, pace, accepted=1, copied=3, count=200) < 30


def test_while_the_network_rests_nodes_are_believed_as_they_are():
    aware = policy()
    aware.calibration = Calibration(expected=[100.0, 100.0], hits=[0.0, 0.0])
    tree = chain(0.9, 0.81)
    resting = DraftView(SequenceView(GenerationSettings(), Statistics(), Pace()), 64, Plan(IDLE, 16), tree)
    dear = Costs((64,), (Curve((1, 2, 3), (0.05, 0.08, 0.11)),), COSTS.draft, COSTS.other)
    aware.costs = LiveCosts(dear)
    for rows in (1, 2, 3) * 3:
        aware.costs.learn([], rows, 64, 0.0, dear.verify_s(rows, 64), 0.001)
    assert aware.limit([resting]) == [2] and aware.limit([view(tree)]) == [0]


def test_requests_that_follow_hard_ones_begin_with_the_network_at_rest():
    aware = policy()
    for _ in range(8):
        rounds(aware, aware.begin(PromptView(GenerationSettings(), torch.zeros(4), None)), accepted=0)
    paces = [aware.begin(PromptView(GenerationSettings(), torch.zeros(4), None)) for _ in range(8)]
    assert sum(map(aware.pacer.rests, paces)) == 6  # every fourth tries


def test_trials_become_rarer_over_requests_until_one_pays():
    aware = policy()

    def trials(accepted):
        """Of a request of 63 rounds that begins at a multiple of 64."""
        aware.pacer.round += -aware.pacer.round % PROBE_EVERY
        return rounds(aware, aware.begin(PromptView(GenerationSettings(), torch.zeros(4), None)), accepted, count=63)

    assert trials(0) > 3
    assert [trials(0) for _ in range(8)].count(0) == 6  # every fourth tries at once
    assert max(trials(2) for _ in range(4)) == 63
    assert trials(0) > 3


def test_a_requests_own_sizes_bound_it():
    settings = GenerationSettings(block_size=4, tree_budget=3)
    aware = policy()
    assert aware.choose(SequenceView(settings, Statistics(), Pace())) == Plan(4, 3)
    assert aware.max_tree_budget(settings) == 3 and aware.max_tree_budget(GenerationSettings()) == 32


def test_the_costs_follow_a_machine_that_becomes_busy_and_one_hiccup_moves_them_little():
    live = LiveCosts(COSTS)
    for _ in range(60):
        live.learn([8], 8, 64, 0.005, 0.100, 0.001)
    assert live.verify_s(8, 64) == pytest.approx(0.100, rel=0.02) and live.draft_s(8) == pytest.approx(0.005)
    live.learn([8], 8, 64, 0.005, 10.0, 0.001)
    assert live.verify_s(8, 64) < 0.12


def test_costs_of_another_shape_than_the_measured_one_are_found_while_working():
    """A machine that was busy when it was measured gives curves that are flat; the rounds show that they are not."""
    flat = Costs((64,), (Curve((1, 2, 4, 8, 16, 24, 32, 48), (1.1, *[2.2] * 7)),), COSTS.draft, COSTS.other)
    aware, rng, pace, shares = policy(flat, calibrate=False), np.random.default_rng(0), Pace(), []
    for _ in range(400):
        gains = sorted((0.8 * rng.uniform(0.4, 0.95) ** i for i in range(32)), reverse=True)
        tree = chain(*gains)
        (count,) = aware.limit([view(tree, pace)])
        shares.append(rate(1, gains, count) / max(rate(1, gains, n) for n in range(33)))
        path = list(range(1, 1 + min(count, int(rng.poisson(sum(gains[:count]))))))
        aware.learn(outcome(view(tree.first(count), pace), path, verify_s=COSTS.verify_s(1 + count, 64)))
    assert np.mean(shares[:10]) < 0.92 and np.mean(shares[200:]) > 0.94


def test_curves_are_straight_between_what_was_measured():
    curve = Curve((1, 3, 7), (1.0, 2.0, 4.0))
    assert [curve.at(size) for size in (0, 1, 2, 3, 5, 7, 9)] == [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0]
    assert Curve((4,), (2.0,)).at(100) == 2.0


def test_more_never_takes_less_and_far_beyond_what_was_measured_nothing_is_absurd():
    noisy = Curve((1, 8, 32, 33), (1.0, 2.0, 5.0, 4.9))
    assert [noisy.at(size) for size in (8, 32, 33)] == [2.0, 5.0, 5.0]
    assert noisy.at(264) >= 5.0
    steep = Curve((1, 8, 32, 33), (1.0, 2.0, 5.0, 6.0))
    assert steep.at(264) < 50  # not by the slope of the last row alone


def test_costs_between_contexts_are_straight():
    curve = Curve((1, 3, 7), (1.0, 2.0, 4.0))
    both = Costs((100, 300), (Curve((1,), (1.0,)), Curve((1,), (3.0,))), curve, 0.0)
    assert (both.verify_s(1, 50), both.verify_s(1, 200), both.verify_s(1, 400)) == (1.0, 2.0, 4.0)


def test_costs_come_back_from_a_file_and_damage_is_refused():
    assert Costs.from_json(COSTS.as_json()) == COSTS
    good = COSTS.as_json()
    endless = replace(COSTS, unsteadiness=math.inf)
    assert Costs.from_json(json.loads(json.dumps(endless.as_json(), allow_nan=False))) == endless
    for damaged in (
        {},
        {**good, "contexts": []},
        {**good, "contexts": [math.inf]},
        {**good, "contexts": [-5]},
        {**good, "draft": {"block_sizes": [1]}},
        {**good, "draft": {"block_sizes": [2, math.inf], "seconds": [0.1, 0.1]}},
        {**good, "draft": {"block_sizes": [1, 2], "seconds": [0.1, 0.1]}},
        {**good, "verify": [{"rows": [1], "seconds": [0.0]}]},
        {**good, "unsteadiness": math.nan},
        {**good, "other": -1.0},
    ):
        with pytest.raises(CheckpointError, match="calibrate again"):
            Costs.from_json(damaged)
    with pytest.raises(CheckpointError, match="do not fit together"):
        Curve((3, 1), (1.0, 2.0))


def two_deep(first, second):
    """The steps of a chain of two, by the chances of their paths."""
    return Steps.of(chain(first, second))


@pytest.mark.parametrize("truth", [0.3, 0.9])
def test_the_calibration_finds_how_often_a_wrong_surrogate_is_right(truth):
    rng = np.random.default_rng(0)
    calibration, said = Calibration(), two_deep(0.6, 0.36)
    for _ in range(3000):
        first = rng.random() < truth
        second = first and rng.random() < truth
        calibration.learn(said.taken([1] * first + [2] * second))
    found = calibration.corrected(said).along_paths()
    assert found == pytest.approx([truth, truth**2], abs=0.08)


def test_without_rounds_the_surrogate_is_believed():
    assert Calibration().corrected(two_deep(0.5, 0.2)).along_paths() == pytest.approx([0.5, 0.2])
    assert len(Calibration().corrected(Steps.of(DraftTree.empty())).along_paths()) == 0


def test_no_node_is_likelier_than_its_parent_however_the_calibration_goes():
    calibration = Calibration(expected=[10.0, 0.0], hits=[10.0, 200.0])
    assert calibration.corrected(two_deep(0.3, 0.27)).along_paths() == pytest.approx([0.3, 0.98 * 0.3])


def test_the_steps_of_a_tree_and_what_a_path_says_of_them():
    #  0 -> 1 (0.5), 2 (0.3);  1 -> 3 (0.4 of 0.5);  3 -> 4
    log_probs = torch.tensor([0.5, 0.3, 0.2, 0.1]).log()
    steps = Steps.of(DraftTree(torch.arange(4), torch.tensor([0, 0, 1, 3]), log_probs))
    assert steps.chances == pytest.approx([0.5, 0.3, 0.4, 0.5]) and steps.depths == [1, 1, 2, 3]
    assert steps.along_paths() == pytest.approx([0.5, 0.3, 0.2, 0.1])
    assert steps.taken([1]) == [Outcome(1, pytest.approx(0.8), True), Outcome(2, pytest.approx(0.4), False)]
    assert steps.taken([2]) == [Outcome(1, pytest.approx(0.8), True)]  # it has no children
    assert steps.taken([]) == [Outcome(1, pytest.approx(0.8), False)]


def test_siblings_that_two_drafters_are_sure_of_share_one_chance():
    log_probs = torch.tensor([0.9, 0.8, 0.1]).log()
    steps = Steps.of(DraftTree(torch.arange(3), torch.zeros(3, dtype=torch.int64), log_probs))
    assert sum(steps.chances) == pytest.approx(0.98)
    assert steps.chances == pytest.approx([0.98 / 1.8 * chance for chance in (0.9, 0.8, 0.1)])
    raised = Calibration(expected=[10.0], hits=[100.0]).corrected(steps)
    assert sum(raised.chances) == pytest.approx(0.98)


def test_a_trial_verifies_something_however_little_is_expected_of_it():
    aware = policy()
    aware.calibration = Calibration(expected=[1000.0] * 2, hits=[0.0] * 2)
    dear = Costs((64,), (Curve((1, 2, 3), (0.05, 0.10, 0.15)),), COSTS.draft, COSTS.other)
    aware.costs = LiveCosts(dear)
    for rows in (1, 2, 3) * 3:
        aware.costs.learn([], rows, 64, 0.0, dear.verify_s(rows, 64), 0.001)
    tree = chain(0.5, 0.25)
    assert aware.limit([view(tree, Pace())]) == [0]
    assert aware.limit([view(tree, Pace(is_trial=True))]) == [1]


def test_of_short_answers_some_begin_with_a_draft_and_show_that_it_pays_again():
    aware = policy()

    def answers(count, accepted):
        prompt = PromptView(GenerationSettings(), torch.zeros(4), None)
        return [rounds(aware, aware.begin(prompt), accepted, count=12) for _ in range(count)]

    answers(10, 0)
    assert sum(answers(50, 2)[20:]) > 300  # nearly every round of the last thirty


def test_sequences_of_a_batch_try_again_together_and_share_what_it_costs():
    aware = policy()
    paces = [Pace(), Pace(), Pace()]
    drafted = []
    for _ in range(200):
        views = [SequenceView(GenerationSettings(), Statistics(), pace) for pace in paces]
        drafts = [DraftView(v, 64, aware.choose(v), DraftTree.empty()) for v in views]
        drafted.append([d.plan.block_size > IDLE for d in drafts])
        aware.learn(RoundView(drafts, [[]] * 3, 0.005, 0.05, 0.001))
    assert sum(map(any, drafted)) < 20
    assert all(all(each) or not any(each) for each in drafted[20:])


@pytest.mark.parametrize("batch", [1, 3])
def test_the_text_is_plain_decodings_whatever_the_policy_does(batch):
    target = tiny_target("llama")
    engine = Engine(Parts(target, RandomTreeDrafter(40), policy()), max_batch=batch, clock=StageClock())
    asked = [GenerationSettings(max_tokens=20, temperature=0.7 * (i % 2), seed=i) for i in range(5)]
    requests = [engine.submit([1 + i, 2, 3], s) for i, s in enumerate(asked)]
    engine.run()
    for request, settings in zip(requests, asked, strict=True):
        assert request.tokens == plain_decode(target, request.prompt, settings)


def test_a_round_is_learned_with_its_own_times_alone():
    seen = []

    class Spy(CostAwarePolicy):
        def learn(self, outcome):
            seen.append(outcome)
            super().learn(outcome)

    clock = StageClock()
    engine = Engine(Parts(tiny_target("llama"), RandomTreeDrafter(40), Spy(COSTS, 8, 32)), clock=clock)
    engine.submit([1, 2, 3], GenerationSettings(max_tokens=8))
    engine.run()
    total = sum(o.draft_s + o.verify_s + o.other_s for o in seen)
    assert len(seen) > 1 and 0 < total <= sum(clock.seconds.values())
    assert max(o.verify_s for o in seen) < clock.seconds["verify"]


def extended(tree, accepted_by_position, rounds=20, pace=None):
    counts = Statistics(rounds=rounds, accepted=sum(accepted_by_position), accepted_by_position=accepted_by_position)
    sequence = SequenceView(GenerationSettings(), counts, pace or Pace())
    return policy().extends([DraftView(sequence, 64, Plan(4, 16), tree)])


def test_a_second_block_is_drafted_where_what_it_may_bring_is_worth_its_seconds():
    sure, unsure = chain(0.9, 0.85, 0.8), chain(0.3, 0.1, 0.02)
    # 2.7 tokens of a block, 18 of 20 times to its end; a draft costs a tenth of a round
    assert extended(sure, [18, 18, 18]) == [True]
    assert extended(unsure, [18, 18, 18]) == [False]
    assert extended(sure, [18, 10, 0]) == extended(sure, [18, 10]) == [False]
    assert extended(chain(0.9, 0.9), [18, 18, 18]) == [False]  # the tree does not reach the end
    assert extended(DraftTree.empty(), [18, 18, 18]) == [False]


def test_a_round_of_two_blocks_says_nothing_of_what_one_costs_and_counts_as_two():
    aware, once, pace = policy(), policy(), Pace()
    view_ = replace(view(chain(0.5, 0.25), pace), is_extended=True)
    aware.learn(outcome(view_, [1], draft_s=0.5))
    assert aware.costs.draft_s(8) == pytest.approx(COSTS.draft_s(8))
    once.learn(outcome(view(chain(0.5, 0.25), other := Pace()), [1]))
    plain = COSTS.verify_s(1, 64) + 0.001
    assert pace.drafting.cost == pytest.approx(other.drafting.cost + 0.005 / plain, rel=1e-3)
