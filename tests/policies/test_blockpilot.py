"""BlockPilot: one prediction after the prefill, and that block size to the end."""

import pytest
import torch

from paceline.checkpoints.policy import save_policy
from paceline.decode import Parts
from paceline.engine import Engine
from paceline.errors import CheckpointError, InputError
from paceline.models.policy_head import PolicyHead, PolicyHeadConfig
from paceline.plain import plain_decode
from paceline.policies.blockpilot import BlockPilotPolicy
from paceline.policies.cost_aware import CostAwarePolicy
from paceline.policies.costs import Costs, Curve
from paceline.policies.fixed import FixedPolicy
from paceline.policies.named import Circumstances, named_policy
from paceline.types import GenerationSettings
from tiny_models import RandomTreeDrafter, tiny_target

COSTS = Costs((64,), (Curve((1, 9), (0.05, 0.06)),), Curve((8,), (0.006,)), 0.002)
PAIR = {"target_digest": "aaaa", "drafter_digest": "bbbb", "chat_template_sha256": "cccc"}


def head_that_says(size, sizes=(3, 5, 9), num_inputs=40):
    head = PolicyHead(PolicyHeadConfig(num_inputs=num_inputs, block_sizes=sizes, width=4)).eval()
    for parameter in head.parameters():
        parameter.data.zero_()
    head.last.bias.data[sizes.index(size)] = 1.0
    return head


class Watching(RandomTreeDrafter):
    def __init__(self, vocab_size):
        super().__init__(vocab_size)
        self.asked = []

    def draft(self, state, requests, clock):
        self.asked += [(r.block_size, r.tree_budget) for r in requests]
        return super().draft(state, requests, clock)


def decode(policy, **changes):
    target, drafter = tiny_target("llama"), Watching(40)
    engine = Engine(Parts(target, drafter, policy))
    settings = GenerationSettings(max_tokens=14, **changes)
    request = engine.submit([1, 2, 3], settings)
    engine.run()
    assert request.tokens == plain_decode(target, [1, 2, 3], settings)
    return request, drafter.asked


def test_every_round_has_the_predicted_size_and_the_text_is_plain_decodings():
    request, asked = decode(BlockPilotPolicy(head_that_says(5), 6))
    assert set(asked) == {(5, 6)} and len(asked) > 1
    assert request.statistics.predict_ms > 0


def named_policy_of(size):
    return BlockPilotPolicy(head_that_says(size), circumstances().budget(9))


def test_the_budget_has_room_for_a_whole_chain():
    _, asked = decode(named_policy_of(9))
    assert set(asked) == {(9, 8)}


def test_a_requests_own_sizes_win():
    _, asked = decode(BlockPilotPolicy(head_that_says(5), 6), block_size=4, tree_budget=3)
    assert set(asked) == {(4, 3)}


def test_the_prediction_sees_the_prompts_logits():
    class Spy(BlockPilotPolicy):
        def begin(self, prompt):
            self.seen = prompt
            return super().begin(prompt)

    policy = Spy(head_that_says(5), 6)
    decode(policy)
    target = tiny_target("llama")
    expected = target.prefill(target.new_cache(1, 3), 0, [1, 2, 3]).logits[0, -1]
    assert torch.equal(policy.seen.logits, expected) and policy.seen.features is None


@pytest.mark.parametrize("layers", [(), (0, 1)], ids=["no features", "features"])
def test_the_last_layers_output_is_seen_where_it_is_read_and_the_drafter_sees_its_own_alone(layers):
    class Tapping(RandomTreeDrafter):
        feature_layers = layers

        def observe(self, state, first_row, features, counts):
            self.width = features.shape[-1]

    class Spy(BlockPilotPolicy):
        def begin(self, prompt):
            self.seen = prompt
            return super().begin(prompt)

    target = tiny_target("llama")
    size, last = target.info.hidden_size, target.info.num_layers - 1
    shape = PolicyHeadConfig(size, (3, 5), inputs="last_hidden", width=4)
    policy, drafter = Spy(PolicyHead(shape).eval(), 6), Tapping(40)
    engine = Engine(Parts(target, drafter, policy))
    settings = GenerationSettings(max_tokens=9)
    request = engine.submit([1, 2, 3], settings)
    engine.run()
    assert request.tokens == plain_decode(target, [1, 2, 3], settings)
    expected = target.prefill(target.new_cache(1, 3), 0, [1, 2, 3], (last,)).features[0, -1]
    assert torch.equal(policy.seen.hidden, expected)
    assert not layers or drafter.width == size * len(layers)


def circumstances(**changes):
    given = {
        "block_size": 8,
        "own_budget": 7,
        "asked_budget": None,
        "max_budget": 32,
        "pair": lambda: PAIR,
        "costs": lambda: COSTS,
    }
    return Circumstances(**{**given, **changes})


def test_a_budget_that_was_asked_for_is_kept():
    assert circumstances(asked_budget=4).budget(16) == 4
    assert circumstances(own_budget=20).budget(16) == 20
    assert named_policy("fixed:16", circumstances(asked_budget=4)).plan.tree_budget == 4


def test_policies_by_name(tmp_path):
    save_policy(head_that_says(5), tmp_path / "p", PAIR)
    fixed = named_policy("fixed:16", circumstances())
    assert isinstance(fixed, FixedPolicy) and (fixed.plan.block_size, fixed.plan.tree_budget) == (16, 15)
    wide = named_policy("fixed:8:64", circumstances())
    assert (wide.plan.block_size, wide.plan.tree_budget) == (8, 64)
    pilot = named_policy(f"blockpilot:{tmp_path / 'p'}", circumstances())
    assert isinstance(pilot, BlockPilotPolicy) and pilot.tree_budget == 8
    aware = named_policy("cost_aware", circumstances())
    assert isinstance(aware, CostAwarePolicy) and (aware.block_size, aware.max_budget) == (8, 32)
    assert not aware.calibrate and named_policy("cost_aware:calibrated", circumstances()).calibrate
    with pytest.raises(CheckpointError, match="another drafter"):
        other = circumstances(pair=lambda: {**PAIR, "drafter_digest": "other"})
        named_policy(f"blockpilot:{tmp_path / 'p'}", other)


def test_nodes_that_are_named_twice_are_refused():
    with pytest.raises(InputError, match="both say how many nodes"):
        named_policy("fixed:8:64", circumstances(asked_budget=4))


def test_a_network_that_comes_with_the_package_serves_its_own_pair_and_no_other(tmp_path):
    save_policy(head_that_says(5), tmp_path / "p", PAIR)
    ours = circumstances(shipped={"best_size": tmp_path / "p"})
    assert isinstance(named_policy("blockpilot", ours), BlockPilotPolicy)
    others = circumstances(shipped={"best_size": tmp_path / "p"}, pair=lambda: {**PAIR, "drafter_digest": "other"})
    for given in (others, circumstances()):
        with pytest.raises(InputError, match="names no folder"):
            named_policy("blockpilot", given)


@pytest.mark.parametrize(
    "spec",
    [
        "fixed",
        "fixed:",
        "fixed:x",
        "fixed:-3",
        "fixed:1",
        "fixed:8:0",
        "fixed:8:",
        "magic:3",
        "blockpilot:",
        "joint:",
        "cost_aware:",
        "cost_aware:x",
        "",
    ],
)
def test_policies_that_there_are_not_are_refused(spec):
    with pytest.raises(InputError, match=r"policy is|block_size is 1|tree_budget is 0"):
        named_policy(spec, circumstances())
