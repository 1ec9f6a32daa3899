"""The probe's acceptance length is the decoding loop's."""

import pytest
import torch

from paceline.decode import Parts
from paceline.drafters.dflash import DFlashDrafter
from paceline.engine import Engine
from paceline.policies.fixed import FixedPolicy
from paceline.train.acceptance_probe import DraftingMethod, TeacherForcedAcceptance, count_rounds, kept_tokens
from paceline.train.data import open_dataset
from paceline.train.recorder import Recorder
from paceline.train.shards import write_shard
from paceline.tree import GROWTHS, DraftTree
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_models import tiny_target

BLOCK, BUDGET = 4, 9
METHODS = [
    DraftingMethod("chain", GROWTHS["chain"], BLOCK - 1),
    DraftingMethod("tree", GROWTHS["best_first"], BUDGET),
]


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """(conversations, rounds by method) of a real loop, with features rounded as shards round them."""
    target = tiny_target("llama", vocab_size=16, num_hidden_layers=4, seed=3)
    network = tiny_network(vocab_size=16, block_size=BLOCK).double()
    network.attach(target.embedding, target.head)
    network.double()
    prompts = [[1, 2, 3], [7, 8], [4, 4, 4, 4], [9, 1], [3], [5, 6, 5]]
    recorder, rounds = Recorder((0, 2)), {}
    for method in METHODS:
        engine = Engine(Parts(target, DFlashDrafter(network, method.growth), FixedPolicy(BLOCK, method.budget)))
        requests = [engine.submit(p, GenerationSettings(max_tokens=8 + 5 * i)) for i, p in enumerate(prompts)]
        engine.run()
        rounds[method.name] = sum(r.statistics.rounds for r in requests)
    engine = Engine(Parts(target, observer=recorder))
    requests = [engine.submit(p, GenerationSettings(max_tokens=8 + 5 * i)) for i, p in enumerate(prompts)]
    for request in requests:
        recorder.watch(request.sequence)
    engine.run()
    conversations = [recorder.take(r.sequence, [*r.prompt, *r.tokens], len(r.prompt)) for r in requests]
    folder = tmp_path_factory.mktemp("shards")
    write_shard(folder / "shard-0.safetensors", conversations)
    return open_dataset(folder), network.float(), rounds


@pytest.mark.parametrize("batch_size", [1, 4])
def test_it_equals_what_the_real_loop_accepts(decoded, batch_size):
    dataset, network, rounds = decoded
    probe = TeacherForcedAcceptance(dataset, BLOCK, METHODS, batch_size, num_anchors=5)
    found = probe(network)
    tokens = dataset.num_response_tokens() - len(dataset)  # the first token of each comes with the prefill
    assert rounds["tree"] < rounds["chain"] < tokens
    for name, value in found.items():
        assert value == pytest.approx(tokens / rounds[name], rel=0.02)  # features were rounded to bfloat16


def test_rounds_jump_over_what_was_kept():
    assert count_rounds([0, 0, 0]) == 3
    assert count_rounds([2, 9, 9, 1, 9]) == 2
    assert count_rounds([7, 0]) == 1
    assert count_rounds([]) == 0


def test_kept_tokens_follow_the_tree_along_the_true_continuation():
    #   root -> 5 -> 7 ; root -> 6 -> 8 -> 9
    tree = DraftTree(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 0, 1, 2, 4]), torch.zeros(5))
    assert kept_tokens(tree, [6, 8, 9]) == 3
    assert kept_tokens(tree, [6, 8, -1]) == 2
    assert kept_tokens(tree, [5, 8, 9]) == 1
    assert kept_tokens(tree, [7, 8, 9]) == 0
    assert kept_tokens(DraftTree.empty(), [7]) == 0
