"""A second DFlash block after the likeliest end of the first: where it starts, what it sees, and the same text."""

import pytest
import torch

from drafted_alone import features_of, same
from paceline.decode import Parts
from paceline.drafters.base import DraftRequest
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.drafters.traced import TracedDrafter
from paceline.engine import Engine
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.tree import GROWTHS, graft, likeliest_end
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_models import tiny_target

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
SIZE = 4


class AlwaysOn(FixedPolicy):
    """Asks for a second block in every round."""

    may_extend = True

    def extends(self, drafts):
        return [True] * len(drafts)


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=50, num_hidden_layers=4)


def new_drafter(target, growth="chain", **changes):
    network = tiny_network(**changes).double()
    network.attach(target.embedding, target.head)
    network.norm.weight.data *= 6  # sure of itself, so that trees grow deep
    return DFlashDrafter(network.double(), GROWTHS[growth])


def drafted(target, drafter, *requests):
    """(state, trees of one block)."""
    state = drafter.new_state(len(requests), 64, torch.device("cpu"))
    for row, request in enumerate(requests):
        features = features_of(target, drafter, request.tokens[:-1])
        drafter.observe(state, row, features, [len(request.tokens) - 1])
    return state, drafter.draft(state, requests, StageClock())


@pytest.mark.parametrize("growth", ["chain", "best_first"])
def test_it_starts_at_the_end_and_sees_the_features_before_the_first_block(target, growth):
    drafter, clock = new_drafter(target, growth), StageClock()
    request = DraftRequest(TOKENS, SIZE, 30, 20)
    state, (tree,) = drafted(target, drafter, request)
    (grown,) = drafter.extend(state, [request], [tree], [True], clock)
    node, _ = likeliest_end(tree, SIZE - 1)
    network, count = drafter.network, len(TOKENS) - 1
    with torch.inference_mode():
        context = network.context(features_of(target, drafter, TOKENS[:-1]))
        kv = [layer.self_attn.context_kv(context, torch.arange(count)[None]) for layer in network.layers]
        block = torch.full((1, SIZE), network.config.mask_token_id)
        block[0, 0] = tree.tokens[node - 1]
        positions = count + SIZE - 1 + torch.arange(SIZE)
        hidden = network.block(network.embed(block), positions[None], kv)[:, 1:]
        branch = drafter.growth(drafter._marginals(hidden, 30)[0], 30)
    assert same(grown, graft(tree, node, branch, 30))
    assert SIZE - 1 < grown.depths().max() <= 2 * (SIZE - 1) and clock.drafter_calls == 1
    grown.validate()


def test_only_chosen_rows_of_a_batch_grow_each_as_it_does_alone(target):
    drafter = new_drafter(target)
    requests = [DraftRequest(TOKENS[:n], SIZE, 9, 20) for n in (8, 3, 5)]
    state, trees = drafted(target, drafter, *requests)
    grown = drafter.extend(state, requests, trees, [True, False, True], StageClock())
    assert grown[1] is trees[1]
    for row in (0, 2):
        alone_state, alone = drafted(target, drafter, requests[row])
        assert same(grown[row], drafter.extend(alone_state, [requests[row]], alone, [True], StageClock())[0])
        assert grown[row].num_nodes == 2 * (SIZE - 1)


@pytest.mark.parametrize(
    ("request_", "changes"),
    [
        (DraftRequest(TOKENS, SIZE, 9, 3), {}),  # nothing deeper is of use
        (DraftRequest(TOKENS, SIZE, 2, 20), {}),  # the first block has no end
        (DraftRequest(TOKENS, SIZE, 9, 20), {"max_position_embeddings": 13}),
    ],
)
def test_where_it_is_of_no_use_the_tree_stays(target, request_, changes):
    drafter, clock = new_drafter(target, **changes), StageClock()
    state, trees = drafted(target, drafter, request_)
    assert drafter.extend(state, [request_], trees, [True], clock)[0] is trees[0] and clock.drafter_calls == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_text_is_that_of_plain_decoding_in_a_batch_that_changes(target, mixed, temperature):
    drafter = new_drafter(target, "best_first")
    part = TracedDrafter(MixtureDrafter(drafter, PromptLookupDrafter()) if mixed else drafter)
    engine = Engine(Parts(target, part, AlwaysOn(SIZE, 30)), max_batch=3)
    prompts = [TOKENS[:n] for n in (1, 4, 8, 2, 6)]
    settings = [
        GenerationSettings(max_tokens=5 + 7 * i, temperature=temperature, seed=i, ignore_eos=True) for i in range(5)
    ]
    requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    for request, prompt, setting in zip(requests, prompts, settings, strict=True):
        assert request.tokens == plain_decode(target, prompt, setting)
    deepest = max(int(round_.tree.depths().max()) for round_ in part.rounds if round_.tree.num_nodes)
    assert deepest > SIZE - 1 and (mixed or deepest <= 2 * (SIZE - 1))


def test_nobody_asks_for_it_unless_a_policy_does(target):
    drafter = TracedDrafter(new_drafter(target))
    engine = Engine(Parts(target, drafter, FixedPolicy(SIZE, 30)), max_batch=1)
    engine.submit(TOKENS, GenerationSettings(max_tokens=20, ignore_eos=True))
    engine.run()
    assert max(int(round_.tree.depths().max()) for round_ in drafter.rounds if round_.tree.num_nodes) == SIZE - 1
