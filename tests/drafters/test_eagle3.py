"""EAGLE-3's trees against the rule written out, and the drafter in the loop."""

import pytest
import torch

from drafted_alone import draft_alone, features_of, same
from paceline.decode import Parts
from paceline.drafters.base import DraftRequest
from paceline.drafters.eagle3 import EAGLE3_TREES, Eagle3Drafter, Eagle3TreeConfig
from paceline.engine import Engine
from paceline.errors import InputError
from paceline.learning.unrolled import UnrolledBatch, unrolled
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings
from tiny_eagle3 import tiny_eagle3
from tiny_models import tiny_target

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=50, num_hidden_layers=4)


def new_drafter(target, tree=None, **changes):
    network = tiny_eagle3(**changes).double()
    network.attach(target.embedding, target.head)
    return Eagle3Drafter(network.double(), tree or Eagle3TreeConfig(depth=3, num_starts=2, width=3))


def log_probs_after(drafter, features, tokens, path):
    """What the network says after the text and a path of drafted tokens, by its form over whole texts."""
    nothing, length = torch.zeros(1), len(tokens)
    batch = UnrolledBatch(
        torch.nn.functional.pad(features, (0, 0, 0, 1 + len(path))),
        torch.tensor([[*tokens, *path]]),
        torch.tensor([[length - 1]]),
        torch.zeros(1, 1, len(path), dtype=torch.int64),
        nothing,
        nothing,
        nothing,
    )
    hidden = unrolled(drafter.network, batch)[0, 0, -1, 0]
    return drafter.network.slot_logits(hidden).log_softmax(-1)


def by_the_rule(drafter, features, tokens, budget):
    """{path: log-prob}: of every level's likeliest nodes the likeliest children; of all of them the likeliest."""
    found, frontier = {}, [((), 0.0)]
    for _ in range(drafter.tree.depth):
        level = {}
        for path, before in frontier:
            top = log_probs_after(drafter, features, tokens, list(path)).topk(drafter.tree.width)
            ids = drafter.network.draft_to_target(top.indices).tolist()
            level |= {(*path, token): before + float(value) for token, value in zip(ids, top.values, strict=True)}
        found |= level
        frontier = sorted(level.items(), key=lambda item: -item[1])[: drafter.tree.num_starts]
    return dict(sorted(found.items(), key=lambda item: -item[1])[:budget])


@pytest.mark.parametrize("changes", [{}, {"draft_vocab_size": 30}, {"norm_before_residual": True}])
@pytest.mark.parametrize("budget", [4, 15])
def test_the_tree_is_that_of_the_rule(target, changes, budget):
    drafter = new_drafter(target, **changes)
    tree = draft_alone(target, drafter, TOKENS, DraftRequest(TOKENS, 4, budget, 20))
    paths = {}
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True), start=1):
        paths[node] = (*paths.get(parent, ()), token)
    with torch.inference_mode():
        expected = by_the_rule(drafter, features_of(target, drafter, TOKENS[:-1]), TOKENS, budget)
    assert {paths[node]: value for node, value in enumerate(tree.log_probs.tolist(), start=1)} == pytest.approx(
        expected
    )


def test_a_row_of_a_batch_drafts_as_it_does_alone(target):
    drafter = new_drafter(target)
    texts = [TOKENS, TOKENS[:3], [7, 7, 2, 30, 41]]
    requests = [DraftRequest(tokens, 4, 9, 20) for tokens in texts]
    state, clock = drafter.new_state(3, 64, torch.device("cpu")), StageClock()
    for row, tokens in enumerate(texts):
        drafter.observe(state, row, features_of(target, drafter, tokens[:-1]), [len(tokens) - 1])
    for tokens, request, tree in zip(texts, requests, drafter.draft(state, requests, clock), strict=True):
        tree.validate()
        assert same(tree, draft_alone(target, drafter, tokens, request))
    assert state.cache.lengths == [len(tokens) - 1 for tokens in texts] and clock.drafter_calls == 3


@pytest.mark.parametrize(("tree", "nodes"), [("chain", 5), ("top_k", 10)])
def test_static_trees_have_one_shape(target, tree, nodes):
    drafted = draft_alone(target, new_drafter(target, EAGLE3_TREES[tree]), TOKENS, DraftRequest(TOKENS, 6, 60, 20))
    assert drafted.num_nodes == nodes
    depths = drafted.depths().tolist()
    assert sorted(depths) == sorted(list(range(1, 6)) * (nodes // 5))


@pytest.mark.parametrize("bad", [{"depth": 0}, {"num_starts": 1000}, {"width": 0}])
def test_sizes_that_no_tree_has_are_refused(bad):
    with pytest.raises(InputError, match="must"):
        Eagle3TreeConfig(**bad)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding_in_a_batch_that_changes(target, temperature):
    drafter = new_drafter(target, draft_vocab_size=30)
    engine = Engine(Parts(target, drafter, FixedPolicy(6, 9)), max_batch=3)
    prompts = [TOKENS[:n] for n in (1, 4, 8, 2, 6)]
    settings = [
        GenerationSettings(max_tokens=5 + 7 * i, temperature=temperature, seed=i, ignore_eos=True) for i in range(5)
    ]
    requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    for request, prompt, setting in zip(requests, prompts, settings, strict=True):
        assert request.tokens == plain_decode(target, prompt, setting)
    assert sum(r.statistics.drafted for r in requests) > 0
