"""Parallel heads in the loop: their marginals make every kind of tree, and the text is plain decoding's."""

import pytest
import torch

from drafted_alone import draft_alone, features_of, same
from paceline.decode import Parts
from paceline.drafters.base import DraftRequest
from paceline.drafters.heads import HeadsDrafter
from paceline.engine import Engine
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.tree import GROWTHS, Marginals
from paceline.types import GenerationSettings
from tiny_heads import tiny_heads
from tiny_models import tiny_target

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=50, num_hidden_layers=4)


def new_drafter(target, growth="best_first", **changes):
    network = tiny_heads(**changes).double()
    network.attach(target.embedding, target.head)
    return HeadsDrafter(network.double(), GROWTHS[growth])


@pytest.mark.parametrize("growth", sorted(GROWTHS))
@pytest.mark.parametrize("size", [2, 3, 5, 9])
def test_a_tree_grows_from_the_heads_marginals(target, growth, size):
    drafter = new_drafter(target, growth, draft_vocab_size=30)
    tree = draft_alone(target, drafter, TOKENS, DraftRequest(TOKENS, size, 9, 20))
    features = features_of(target, drafter, TOKENS[:-1])[:, -1]
    count = min(4, size - 1)  # there are four heads
    with torch.inference_mode():
        hidden = drafter.network.draft_hidden(features, torch.tensor(TOKENS[-1:]), count)
        log_probs = drafter.network.draft_logits(hidden[0]).float().log_softmax(-1)
    top = log_probs.topk(9, -1)
    expected = GROWTHS[growth](Marginals(drafter.network.draft_to_target(top.indices), top.values), 9)
    assert same(tree, expected) and tree.depths().max() <= count


def test_a_row_of_a_batch_drafts_as_it_does_alone_wherever_it_moves(target):
    drafter, texts = new_drafter(target), [TOKENS, TOKENS[:3], [7, 7, 2, 30, 41]]
    requests = [DraftRequest(tokens, 5, 9, 20) for tokens in texts]
    state, clock = drafter.new_state(3, 64, torch.device("cpu")), StageClock()
    for row, tokens in enumerate(texts):
        features = features_of(target, drafter, tokens[:-1])
        drafter.observe(state, row, features[:, :1], [1])
        drafter.observe(state, row, torch.cat([features[:, 1:], features[:, :1]], 1), [len(tokens) - 2])
    trees = drafter.draft(state, requests, clock)
    assert clock.drafter_calls == 1
    for tokens, request, tree in zip(texts, requests, trees, strict=True):
        assert same(tree, draft_alone(target, drafter, tokens, request))
    state.move(2, 0)
    assert same(drafter.draft(state, [requests[2]], clock)[0], trees[2])
    state.clear(0)
    assert drafter.draft(state, [requests[2]], clock)[0].num_nodes == 0


@pytest.mark.parametrize("growth", ["best_first", "top_k"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding_in_a_batch_that_changes(target, growth, temperature):
    engine = Engine(Parts(target, new_drafter(target, growth), FixedPolicy(5, 9)), max_batch=3)
    prompts = [TOKENS[:n] for n in (1, 4, 8, 2, 6)]
    settings = [
        GenerationSettings(max_tokens=5 + 7 * i, temperature=temperature, seed=i, ignore_eos=True) for i in range(5)
    ]
    requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    for request, prompt, setting in zip(requests, prompts, settings, strict=True):
        assert request.tokens == plain_decode(target, prompt, setting)
    assert sum(r.statistics.drafted for r in requests) > 0
