"""The SpecBlock drafter in the loop: its caches, its batches, and the text."""

import pytest
import torch

from drafted_alone import draft_alone, features_of, same
from paceline.decode import Parts
from paceline.drafters.base import DraftRequest
from paceline.drafters.specblock import SpecBlockDrafter, SpecBlockTreeConfig
from paceline.engine import Engine
from paceline.errors import InputError
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings
from tiny_models import tiny_target
from tiny_specblock import tiny_specblock

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=50, num_hidden_layers=4)


def new_drafter(target, num_blocks=3, num_starts=3, width=None, **changes):
    network = tiny_specblock(**changes).double()
    network.attach(target.embedding, target.head)
    tree = SpecBlockTreeConfig(num_blocks, num_starts, siblings=(1, 2, 3, 1), width=width)
    return SpecBlockDrafter(network.double(), tree)


def test_a_row_of_a_batch_drafts_as_it_does_alone(target):
    drafter = new_drafter(target)
    texts = [TOKENS, TOKENS[:3], [7, 7, 2, 30, 41]]
    requests = [DraftRequest(tokens, 10, 12, 20) for tokens in texts]
    state = drafter.new_state(3, 64, torch.device("cpu"))
    for row, tokens in enumerate(texts):
        drafter.observe(state, row, features_of(target, drafter, tokens[:-1]), [len(tokens) - 1])
    for tokens, request, tree in zip(texts, requests, drafter.draft(state, requests, StageClock()), strict=True):
        tree.validate()
        assert tree.num_nodes == 12
        assert same(tree, draft_alone(target, drafter, tokens, request))
    assert state.cache.lengths == [3 * (len(tokens) - 1) for tokens in texts]  # later blocks are not kept


def test_features_that_come_in_pieces_give_the_same_tree_as_at_once(target):
    drafter, request = new_drafter(target), DraftRequest(TOKENS, 10, 12, 20)
    features = features_of(target, drafter, TOKENS[:-1])
    state = drafter.new_state(1, 64, torch.device("cpu"))
    drafter.observe(state, 0, features[:, :4], [4])
    drafter.draft(state, [DraftRequest(TOKENS[:5], 10, 12, 20)], StageClock())
    drafter.observe(state, 0, features[:, 4:6], [2])
    drafter.observe(state, 0, features[:, 6:], [1])
    assert same(drafter.draft(state, [request], StageClock())[0], draft_alone(target, drafter, TOKENS, request))


def test_long_texts_are_read_in_pieces(target, monkeypatch):
    drafter = new_drafter(target)
    texts = [TOKENS, TOKENS[:3]]
    requests = [DraftRequest(tokens, 10, 12, 20) for tokens in texts]
    expected = [draft_alone(target, drafter, t, r) for t, r in zip(texts, requests, strict=True)]
    monkeypatch.setattr("paceline.drafters.unrolled._PIECE", 9)
    state = drafter.new_state(2, 64, torch.device("cpu"))
    for row, tokens in enumerate(texts):
        drafter.observe(state, row, features_of(target, drafter, tokens[:-1]), [len(tokens) - 1])
    assert all(map(same, drafter.draft(state, requests, StageClock()), expected))
    assert state.cache.lengths == [21, 6]


def test_a_row_that_wants_nothing_waits(target):
    drafter, request = new_drafter(target), DraftRequest(TOKENS, 10, 12, 20)
    state = drafter.new_state(3, 64, torch.device("cpu"))
    features = features_of(target, drafter, TOKENS[:-1])
    for row in (1, 2):
        drafter.observe(state, row, features, [7])
    nothing = DraftRequest(TOKENS, 0, 0, 0)
    first = drafter.draft(state, [nothing, request, nothing], StageClock())
    assert [tree.num_nodes for tree in first] == [0, 12, 0]
    assert state.cache.lengths == [0, 21, 0] and list(state.unread) == [2]
    second = drafter.draft(state, [nothing, nothing, request], StageClock())
    assert same(first[1], second[2]) and same(first[1], draft_alone(target, drafter, TOKENS, request))


def test_a_row_that_reads_much_may_stand_beside_a_long_one(target):
    drafter, request = new_drafter(target), DraftRequest(TOKENS, 10, 12, 20)
    long = (TOKENS * 4)[:29]
    state = drafter.new_state(2, 32, torch.device("cpu"))
    drafter.observe(state, 0, features_of(target, drafter, long[:-1]), [28])
    drafter.draft(state, [DraftRequest(long, 10, 12, 20)], StageClock())
    drafter.observe(state, 0, features_of(target, drafter, long)[:, -1:], [1])
    drafter.observe(state, 1, features_of(target, drafter, TOKENS[:-1]), [7])
    trees = drafter.draft(state, [DraftRequest([*long, 5], 10, 12, 20), request], StageClock())
    assert same(trees[1], draft_alone(target, drafter, TOKENS, request))


def test_a_cache_that_grew_while_drafting_can_be_moved_afterwards(target):
    drafter = new_drafter(target)
    state = drafter.new_state(2, 2, torch.device("cpu"))
    for row in range(2):
        drafter.observe(state, row, features_of(target, drafter, TOKENS[:-1]), [7])
    drafter.draft(state, [DraftRequest(TOKENS, 10, 12, 20)] * 2, StageClock())
    assert state.cache.num_slots > 2 * 3 + state.room
    state.move(1, 0)
    state.clear(1)


def test_rows_move_are_cleared_and_are_saved_with_what_waits(target):
    drafter, request = new_drafter(target), DraftRequest(TOKENS, 10, 12, 20)
    features = features_of(target, drafter, TOKENS[:-1])
    state = drafter.new_state(2, 64, torch.device("cpu"))
    drafter.observe(state, 1, features[:, :4], [4])
    state.move(1, 0)
    drafter.draft(state, [DraftRequest(TOKENS[:5], 10, 12, 20)], StageClock())
    drafter.observe(state, 0, features[:, 4:], [3])
    saved = state.save(0)
    state.clear(0)
    assert not state.unread
    state.restore(1, saved, 7)
    state.move(1, 0)
    assert same(drafter.draft(state, [request], StageClock())[0], draft_alone(target, drafter, TOKENS, request))


def test_a_restored_prefix_goes_on_with_another_text(target):
    drafter = new_drafter(target)
    features = features_of(target, drafter, TOKENS[:-1])
    state = drafter.new_state(1, 64, torch.device("cpu"))
    drafter.observe(state, 0, features, [7])
    drafter.draft(state, [DraftRequest(TOKENS, 10, 12, 20)], StageClock())
    saved = state.save(0)
    state.clear(0)
    state.restore(0, saved, 3)
    other = [*TOKENS[:3], 20, 21]
    drafter.observe(state, 0, features_of(target, drafter, other[:-1])[:, 3:], [1])
    drafter.draft(state, [DraftRequest(other, 10, 12, 20)], StageClock())[0].validate()
    assert state.cache.lengths == [12]


def test_a_block_size_asks_for_as_many_blocks_as_reach_it(target):
    drafter = new_drafter(target, width=1)
    for size, depth in ((1, 0), (2, 1), (4, 3), (5, 4), (7, 6), (10, 9), (16, 15), (40, 20)):
        tree = draft_alone(target, drafter, TOKENS, DraftRequest(TOKENS, size, 30, 20))
        assert tree.num_nodes == depth
    assert draft_alone(target, drafter, TOKENS, DraftRequest(TOKENS, 10, 30, 4)).num_nodes == 4


def test_a_static_tree_asks_the_rank_head_nothing(target):
    drafter = new_drafter(target, width=2)
    drafter.network.rank_head = None
    assert draft_alone(target, drafter, TOKENS, DraftRequest(TOKENS, 4, 30, 20)).num_nodes == 6


def test_no_position_is_past_those_the_network_knows(target):
    drafter = new_drafter(target, width=1, max_position_embeddings=12)
    for length, depth in ((8, 3), (10, 0)):
        tokens = (TOKENS * 2)[:length]
        assert draft_alone(target, drafter, tokens, DraftRequest(tokens, 10, 30, 20)).num_nodes == depth


@pytest.mark.parametrize("bad", [{"num_blocks": 0}, {"num_starts": 1000}, {"siblings": (1, 2)}, {"width": 11}])
def test_sizes_that_no_tree_has_are_refused(bad):
    with pytest.raises(InputError, match="must"):
        SpecBlockTreeConfig(**bad)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding_in_a_batch_that_changes(target, temperature):
    drafter = new_drafter(target)
    engine = Engine(Parts(target, drafter, FixedPolicy(10, 9)), max_batch=3)
    prompts = [TOKENS[:n] for n in (1, 4, 8, 2, 6)]
    settings = [
        GenerationSettings(max_tokens=5 + 7 * i, temperature=temperature, seed=i, ignore_eos=True) for i in range(5)
    ]
    requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    for request, prompt, setting in zip(requests, prompts, settings, strict=True):
        assert request.tokens == plain_decode(target, prompt, setting)
    assert sum(r.statistics.drafted for r in requests) > 0
