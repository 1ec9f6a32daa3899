"""The DFlash drafter in the loop: its caches, its batches, and the text."""

import pytest
import torch

from drafted_alone import draft_alone, features_of, same
from paceline.decode import Parts
from paceline.drafters.base import DraftRequest
from paceline.drafters.dflash import DFlashDrafter
from paceline.engine import Engine
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.tree import GROWTHS
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_models import tiny_target


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=50, num_hidden_layers=4)


def new_drafter(target, growth="best_first", **changes):
    network = tiny_network(**changes).double()
    network.attach(target.embedding, target.head)
    return DFlashDrafter(network.double(), GROWTHS[growth])


@pytest.mark.parametrize("drafts_between", [False, True], ids=["waiting", "read between"])
def test_features_that_come_in_pieces_give_the_same_tree_as_at_once(target, drafts_between):
    drafter = new_drafter(target)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    request = DraftRequest(tokens, 4, 9, 20)
    features = features_of(target, drafter, tokens[:-1])
    state = drafter.new_state(1, 64, torch.device("cpu"))
    drafter.observe(state, 0, features[:, :4], [4])
    assert state.cache.lengths == [0]  # nothing is read before a draft wants it
    if drafts_between:
        drafter.draft(state, [DraftRequest(tokens[:5], 4, 9, 20)], StageClock())
        assert state.cache.lengths == [4]
    padded = torch.cat([features[:, 4:], torch.randn_like(features[:, :2])], 1)
    drafter.observe(state, 0, padded, [3])
    assert same(drafter.draft(state, [request], StageClock())[0], draft_alone(target, drafter, tokens, request))


def test_a_row_that_reads_much_may_stand_beside_a_long_one(target):
    drafter, request = new_drafter(target), DraftRequest([3, 1, 4, 1, 5, 9, 2, 6], 4, 9, 20)
    long = ([3, 1, 4, 1, 5, 9, 2, 6] * 4)[:29]
    state = drafter.new_state(2, 32, torch.device("cpu"))
    drafter.observe(state, 0, features_of(target, drafter, long[:-1]), [28])
    drafter.draft(state, [DraftRequest(long, 4, 9, 20)], StageClock())
    drafter.observe(state, 1, features_of(target, drafter, request.tokens[:-1]), [7])
    trees = drafter.draft(state, [DraftRequest(long, 4, 9, 20), request], StageClock())
    assert same(trees[1], draft_alone(target, drafter, request.tokens, request))


def test_what_waits_moves_is_cleared_and_is_saved_with_its_row(target):
    drafter = new_drafter(target)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    features = features_of(target, drafter, tokens[:-1])
    state = drafter.new_state(2, 64, torch.device("cpu"))
    drafter.observe(state, 1, features, [7])
    state.move(1, 0)
    tree = drafter.draft(state, [DraftRequest(tokens, 4, 9, 20)], StageClock())[0]
    assert same(tree, draft_alone(target, drafter, tokens, DraftRequest(tokens, 4, 9, 20)))
    drafter.observe(state, 1, features, [7])
    saved = state.save(1)
    state.clear(1)
    state.clear(0)
    state.restore(0, saved, 7)
    tree = drafter.draft(state, [DraftRequest(tokens, 4, 9, 20)], StageClock())[0]
    assert same(tree, draft_alone(target, drafter, tokens, DraftRequest(tokens, 4, 9, 20)))
    drafter.observe(state, 1, features, [7])
    state.clear(1)
    assert not state.unread


def test_a_block_of_the_anchor_alone_runs_no_network_and_reads_no_features(target):
    drafter = new_drafter(target)
    state = drafter.new_state(1, 64, torch.device("cpu"))
    drafter.observe(state, 0, features_of(target, drafter, [1, 2, 3]), [3])
    (tree,) = drafter.draft(state, [DraftRequest([1, 2, 3, 4], 1, 8, 9)], StageClock())
    assert tree.num_nodes == 0 and state.unread[0]


def test_rows_of_a_batch_with_different_lengths_and_sizes_draft_as_they_would_alone(target):
    drafter = new_drafter(target)
    texts = [[3, 1, 4, 1, 5, 9, 2], [7, 7], [8, 2, 8, 1]]
    requests = [
        DraftRequest(text, block, budget, 20) for text, block, budget in zip(texts, (4, 6, 4), (9, 5, 0), strict=True)
    ]
    state = drafter.new_state(3, 64, torch.device("cpu"))
    for row, text in enumerate(texts):
        drafter.observe(state, row, features_of(target, drafter, text[:-1]), [len(text) - 1])
    trees = drafter.draft(state, requests, StageClock())
    for row in (0, 1):
        assert same(trees[row], draft_alone(target, drafter, texts[row], requests[row]))
    assert trees[2].num_nodes == 0


def test_the_chain_is_the_argmax_of_every_position_and_follows_the_block_size(target):
    drafter = new_drafter(target, "chain")
    for block_size in (2, 4, 7):
        tree = draft_alone(target, drafter, [1, 2, 3], DraftRequest([1, 2, 3], block_size, 20, 20))
        assert tree.num_nodes == block_size - 1
        assert tree.parents.tolist() == list(range(block_size - 1))


def test_no_node_is_deeper_than_what_is_still_wanted(target):
    drafter = new_drafter(target, "chain")
    tree = draft_alone(target, drafter, [1, 2, 3], DraftRequest([1, 2, 3], 6, 30, 2))
    assert tree.depths().tolist() == [1, 2]


def test_beyond_the_drafters_context_it_drafts_nothing_and_decoding_goes_on(target):
    drafter = new_drafter(target, max_position_embeddings=8)
    parts = Parts(target, drafter, FixedPolicy(4, 6))
    engine = Engine(parts)
    settings = GenerationSettings(max_tokens=12)
    request = engine.submit([1, 2, 3], settings)
    engine.run()
    assert request.tokens == plain_decode(target, [1, 2, 3], settings)
    assert 0 < request.statistics.drafted < 5 * 6


@pytest.mark.parametrize("growth", sorted(GROWTHS))
def test_text_equals_plain_decoding_for_every_growth_in_a_changing_batch(target, growth):
    parts = Parts(target, new_drafter(target, growth, draft_vocab_size=40), FixedPolicy(4, 7))
    engine = Engine(parts, max_batch=3)
    requests = [engine.submit([1 + i, 2], GenerationSettings(max_tokens=6 + i, draft=i != 2)) for i in range(6)]
    engine.run()
    for request in requests:
        assert request.tokens == plain_decode(target, request.prompt, request.settings)
    assert requests[2].statistics.drafted == 0
    assert all(r.statistics.drafted for r in requests if r is not requests[2])
