"""The joint policy: block size and budget from the prefill and the request's own rounds, and the same text."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.checkpoints.policy import save_policy
from paceline.decode import Parts
from paceline.engine import Engine
from paceline.errors import CheckpointError, InputError
from paceline.metrics import StageClock
from paceline.models.policy_head import PolicyHead, PolicyHeadConfig
from paceline.plain import plain_decode
from paceline.policies.base import DraftView, Plan, PromptView, RoundView, SequenceView
from paceline.policies.blockpilot import BlockPilotPolicy
from paceline.policies.calibration import Outcome
from paceline.policies.cost_aware import IDLE
from paceline.policies.costs import Costs, Curve
from paceline.policies.joint import JointPolicy, Predictor
from paceline.policies.named import Circumstances, named_policy
from paceline.tree import DraftTree
from paceline.types import GenerationSettings, Statistics
from tiny_models import RandomTreeDrafter, tiny_target

#: A draft takes 1 ms a row, a pass 50 ms up to 8 rows and 1 ms for each more.
COSTS = Costs((64,), (Curve((1, 8, 40), (0.050, 0.050, 0.082)),), Curve((2, 4, 8, 16), (0.002, 0.004, 0.008, 0.016)), 0)
PAIR = {"target_digest": "aaaa", "drafter_digest": "bbbb", "chat_template_sha256": "cccc"}
SIZES = (2, 4, 8)


def head_that_says(*logs, predicts="accepted"):
    """A network that says the same of every prompt."""
    shape = PolicyHeadConfig(num_inputs=40, block_sizes=SIZES, width=4, predicts=predicts)
    head = PolicyHead(shape).eval()
    for parameter in head.parameters():
        parameter.data.zero_()
    head.last.bias.data[:] = torch.tensor(logs)
    return head


def predictor(*logs, spread=0.5):
    return Predictor(head_that_says(*logs), (0.0, 0.0, 0.0), (spread,) * 3)


def prompt(**settings):
    return PromptView(GenerationSettings(**settings), torch.zeros(40), None)


def policy(**options):
    return JointPolicy(COSTS, 8, 32, **options)


def planned(joint, pace, **settings):
    return joint.choose(SequenceView(GenerationSettings(**settings), Statistics(), pace))


def play(joint, pace, kept, rounds=60):
    """Rounds whose drafts are kept `kept[size]` deep; the block sizes that were planned."""
    planned = []
    for _ in range(rounds):
        view = SequenceView(GenerationSettings(), Statistics(), pace)
        plan = joint.choose(view)
        count = plan.block_size - 1
        tree = DraftTree(torch.arange(count), torch.arange(count), torch.arange(1.0, count + 1) * math.log(0.7))
        draft = DraftView(view, 64, plan, tree)
        path = list(range(1, min(count, kept[plan.block_size]) + 1)) if count else []
        seconds = joint.costs.costs.draft_s(plan.block_size) if count else 0.0
        joint.learn(RoundView([draft], [path], seconds, COSTS.verify_s(1 + count, 64), 1e-6))
        planned.append(plan.block_size)
    return planned


def test_the_prefill_says_how_hard_a_request_is_and_which_size_suits_it():
    joint = policy(predictor=predictor(-1.0, -1.0, -1.0))
    hard = joint.begin(prompt())
    assert hard.difficulty.mean == pytest.approx(1.0, abs=0.05)
    easy = policy(predictor=predictor(1.0, 1.0, 1.0)).begin(prompt())
    assert easy.difficulty.mean == pytest.approx(-1.0, abs=0.05)
    suited = policy(predictor=predictor(-1.0, 1.0, 0.0))
    assert planned(suited, suited.begin(prompt())).block_size == 4


def test_a_prompt_that_is_foreseen_to_be_hard_begins_without_a_draft():
    dear = Costs(COSTS.contexts, COSTS.verify, Curve((2, 8), (0.01, 0.01)), 0.0)
    joint = JointPolicy(dear, 8, 32, predictor(-3.0, -3.0, -3.0, spread=0.1))
    pace = joint.begin(prompt())
    for _ in range(16):
        assert planned(joint, pace).block_size == IDLE
        joint.pacer.round += 1
    assert planned(joint, pace).block_size > IDLE


def test_all_requests_begin_alike_without_a_predictor_and_the_rounds_tell_them_apart():
    joint = policy()
    easy, hard = joint.begin(prompt()), joint.begin(prompt())
    assert easy.difficulty.mean == hard.difficulty.mean == pytest.approx(0.0, abs=1e-6)
    play(joint, easy, dict.fromkeys((2, 4, 8, 16), 15), 20)
    play(joint, hard, dict.fromkeys((2, 4, 8, 16), 0), 20)
    assert easy.difficulty.mean < -0.3 and hard.difficulty.mean > 0.3


def test_requests_are_judged_by_those_that_are_served_not_by_the_training_alone():
    joint = policy(predictor=predictor(-1.0, -1.0, -1.0))
    first = joint.begin(prompt())
    for _ in range(100):
        last = joint.begin(prompt())
    assert first.difficulty.mean == pytest.approx(1.0, abs=0.05) and last.difficulty.mean < 0.1


@pytest.mark.parametrize(("keeps", "best"), [(0.3, 2), (0.6, 4), (0.85, 8), (0.97, 16)])
def test_the_size_that_brings_most_for_its_time_is_found(keeps, best):
    """The best one is where (1 - h^b) / (1 - h) over the seconds of its round is highest."""
    dear = Costs((64,), (Curve((1, 40), (0.030, 0.069)),), Curve((2, 4, 8, 16), (0.002, 0.004, 0.008, 0.016)), 0.0)
    seconds = {b: dear.draft_s(b) + dear.verify_s(b, 64) for b in (2, 4, 8, 16)}
    rates = {b: (1 - keeps**b) / (1 - keeps) / seconds[b] for b in seconds}
    assert max(rates, key=rates.get) == best
    rng, shares = np.random.default_rng(0), []
    joint = JointPolicy(dear, 8, 32)
    pace = joint.begin(prompt())
    for _ in range(400):
        view = SequenceView(GenerationSettings(), Statistics(), pace)
        plan = joint.choose(view)
        count = plan.block_size - 1
        tree = DraftTree(torch.arange(count), torch.arange(count), torch.arange(1.0, count + 1) * math.log(keeps))
        path = list(range(1, 1 + int((rng.random(count) < keeps).cumprod().sum())))
        took = dear.draft_s(plan.block_size), dear.verify_s(1 + count, 64)
        joint.learn(RoundView([DraftView(view, 64, plan, tree)], [path], *took, 1e-6))
        shares.append(rates.get(plan.block_size, 0.0) / rates[best])
    assert np.mean([share for share in shares[100:] if share]) > 0.93


def test_a_neighbour_that_does_not_draft_disturbs_nothing():
    target = tiny_target("llama")
    engine = Engine(Parts(target, RandomTreeDrafter(40), policy()), max_batch=2, clock=StageClock())
    asked = [GenerationSettings(max_tokens=20, draft=draft) for draft in (False, True)]
    requests = [engine.submit([1, 2, 3], s) for s in asked]
    engine.run()
    assert all(r.tokens == plain_decode(target, [1, 2, 3], s) for r, s in zip(requests, asked, strict=True))


def test_drafts_that_bring_nothing_stop():
    dear = Costs(COSTS.contexts, COSTS.verify, Curve((2, 8), (0.01, 0.01)), 0.0)
    joint = JointPolicy(dear, 8, 32)
    sizes = play(joint, joint.begin(prompt()), dict.fromkeys((2, 8), 0), 200)
    assert 3 < sum(size > IDLE for size in sizes) < 40


def test_a_posterior_moves_the_budget():
    joint = policy()
    tree = DraftTree(torch.arange(20), torch.arange(20), torch.arange(1.0, 21.0) * math.log(0.9))
    easy, hard = joint.begin(prompt()), joint.begin(prompt())
    for _ in range(20):
        easy.difficulty.saw([Outcome(1, 0.9, True)] * 5)
        hard.difficulty.saw([Outcome(1, 0.9, False)])

    def nodes(pace):
        view = SequenceView(GenerationSettings(), Statistics(), pace)
        return joint.limit([DraftView(view, 64, Plan(8, 32), tree)])[0]

    assert nodes(easy) > nodes(hard)


def test_a_requests_own_sizes_win():
    joint = policy(predictor=predictor(0.0, 3.0, 0.0))
    pace = joint.begin(prompt(block_size=5, tree_budget=3))
    assert planned(joint, pace, block_size=5, tree_budget=3) == Plan(5, 3)
    play_one = DraftView(SequenceView(GenerationSettings(), Statistics(), pace), 64, Plan(5, 3), DraftTree.empty())
    joint.learn(RoundView([play_one], [[]], 0.005, 0.05, 0.001))  # a size that is no candidate
    assert joint.skill.sizes == (2, 4, 8)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_text_is_plain_decodings_whatever_the_policy_does(batch):
    target = tiny_target("llama")
    joint = policy(predictor=predictor(0.2, 0.5, 0.1))
    engine = Engine(Parts(target, RandomTreeDrafter(40), joint), max_batch=batch, clock=StageClock())
    asked = [GenerationSettings(max_tokens=20, temperature=0.7 * (i % 2), seed=i) for i in range(5)]
    requests = [engine.submit([1 + i, 2, 3], s) for i, s in enumerate(asked)]
    engine.run()
    for request, settings in zip(requests, asked, strict=True):
        assert request.tokens == plain_decode(target, request.prompt, settings)


def circumstances():
    return Circumstances(8, 7, None, 32, lambda: PAIR, lambda: COSTS)


def test_by_name_with_a_predictor_and_without(tmp_path):
    about = {**PAIR, "typical": [0.1, 0.2, 0.3], "spread": [0.5, 0.6, 0.7]}
    save_policy(head_that_says(0.0, 0.0, 0.0), tmp_path / "p", about)
    joint = named_policy(f"joint:{tmp_path / 'p'}", circumstances())
    assert isinstance(joint, JointPolicy) and joint.predictor is not None
    assert joint.predictor.typical == (0.1, 0.2, 0.3) and joint.describe()["begins"] == "from the prefill"
    alone = named_policy("joint", circumstances())
    assert isinstance(alone, JointPolicy) and alone.predictor is None and alone.skill.sizes == (2, 4, 8, 16)


def test_without_a_folder_the_network_of_this_pair_is_used_where_there_is_one(tmp_path):
    save_policy(head_that_says(0.0, 0.0, 0.0), tmp_path / "p", {**PAIR, "typical": [0.0] * 3, "spread": [0.5] * 3})
    shipped = replace(circumstances(), shipped={"accepted": tmp_path / "p"})
    assert named_policy("joint", shipped).predictor is not None
    assert named_policy("joint", replace(shipped, pair=lambda: {**PAIR, "target_digest": "other"})).predictor is None


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ({}, "no typical for each"),
        ({"typical": [0.1, 0.2]}, "no typical for each"),
        ({"typical": [0.1, 0.2, float("nan")]}, "no typical for each"),
        ({"typical": [0.1, 0.2, 0.3], "spread": [0.5, 0.0, 0.1]}, "that cannot be"),
        ({"typical": [0.1, 0.2, 1e308], "spread": [0.5, 0.5, 0.1]}, "that cannot be"),
    ],
)
def test_a_predictor_without_its_averages_is_refused(about, sentence, tmp_path):
    save_policy(head_that_says(0.0, 0.0, 0.0), tmp_path / "p", {**PAIR, **about})
    with pytest.raises(CheckpointError, match=sentence):
        named_policy(f"joint:{tmp_path / 'p'}", circumstances())


def test_a_network_of_the_other_kind_is_refused_by_name(tmp_path):
    save_policy(head_that_says(0.0, 0.0, 0.0), tmp_path / "accepted", PAIR)
    save_policy(head_that_says(0.0, 0.0, 0.0, predicts="best_size"), tmp_path / "best", PAIR)
    with pytest.raises(InputError, match=r"predicts accepted, but best_size is wanted here; use joint:"):
        named_policy(f"blockpilot:{tmp_path / 'accepted'}", circumstances())
    with pytest.raises(InputError, match=r"predicts best_size, but accepted is wanted here; use blockpilot:"):
        named_policy(f"joint:{tmp_path / 'best'}", circumstances())
    assert isinstance(named_policy(f"blockpilot:{tmp_path / 'best'}", circumstances()), BlockPilotPolicy)
