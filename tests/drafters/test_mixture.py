"""A network and prompt lookup in one tree."""

import torch

from paceline.decode import Parts
from paceline.drafters.base import DraftRequest
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.engine import Engine
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.tree import DraftTree
from paceline.types import GenerationSettings
from tiny_models import RandomTreeDrafter, tiny_target


def mixture(vocab_size=40):
    return MixtureDrafter(RandomTreeDrafter(vocab_size), PromptLookupDrafter())


def test_copies_go_deeper_than_the_networks_block():
    drafter = mixture()
    state = drafter.new_state(1, 64, torch.device("cpu"))
    span = list(range(20, 36))
    (tree,) = drafter.draft(state, [DraftRequest([*span, 7, *span[:6]], 3, 12, 30)], StageClock())
    tree.validate()
    assert tree.num_nodes == 12
    assert tree.depths().max() > 2


def test_a_block_of_the_anchor_alone_is_copied_only():
    class Network(RandomTreeDrafter):
        def draft(self, state, requests, clock):
            assert all(request.block_size == 1 for request in requests)
            return [DraftTree.empty() for _ in requests]

    drafter = MixtureDrafter(Network(40), PromptLookupDrafter())
    state = drafter.new_state(1, 64, torch.device("cpu"))
    (tree,) = drafter.draft(state, [DraftRequest([5, 6, 7, 8, 5, 6], 1, 4, 9)], StageClock())
    assert tree.tokens.tolist() == [7, 8, 5, 6]


def test_no_nodes_are_drafted_where_none_are_wanted():
    drafter = mixture()
    state = drafter.new_state(2, 64, torch.device("cpu"))
    trees = drafter.draft(state, [DraftRequest([1, 2, 1], 3, 0, 9), DraftRequest([1, 2, 1], 3, 4, 0)], StageClock())
    assert [tree.num_nodes for tree in trees] == [0, 0]


def test_text_equals_plain_decoding_in_a_batch_that_changes():
    target = tiny_target("llama")
    prompts = [[1, 2, 3] * 3, [4, 4, 4], [9, 8, 7, 9, 8, 7, 9], [11, 11], [2, 30, 17, 2, 30]]
    for temperature in (0.0, 0.8):
        settings = [GenerationSettings(max_tokens=9 + 3 * i, temperature=temperature, seed=i) for i in range(5)]
        engine = Engine(Parts(target, mixture(), FixedPolicy(5, 9)), max_batch=2)
        requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
        engine.run()
        assert [r.tokens for r in requests] == [
            plain_decode(target, p, s) for p, s in zip(prompts, settings, strict=True)
        ]
        assert sum(r.statistics.accepted for r in requests) > 0
