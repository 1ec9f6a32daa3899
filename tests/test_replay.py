"""Held-out acceptance is what decoding with the real target accepts."""

from functools import partial

import pytest
import torch

from paceline.decode import Parts
from paceline.drafters.dflash import DFlashDrafter
from paceline.engine import Engine
from paceline.learning.recorded_target import RecordedTarget
from paceline.learning.recorder import Recorder
from paceline.policies.fixed import FixedPolicy
from paceline.replay import DraftingMethod, ReplayedAcceptance
from paceline.train.data import open_dataset
from paceline.train.shards import write_shard
from paceline.tree import GROWTHS
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_models import RandomTreeDrafter, tiny_target

BLOCK, BUDGET = 4, 9
METHODS = [
    DraftingMethod("chain", partial(DFlashDrafter, growth=GROWTHS["chain"]), BLOCK, BLOCK - 1),
    DraftingMethod("tree", partial(DFlashDrafter, growth=GROWTHS["best_first"]), BLOCK, BUDGET),
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
        engine = Engine(Parts(target, method.drafter(network), FixedPolicy(method.block_size, method.budget)))
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
def test_it_equals_what_the_real_target_accepts(decoded, batch_size):
    dataset, network, rounds = decoded
    found = ReplayedAcceptance([dataset[i] for i in range(len(dataset))], METHODS, batch_size)(network)
    tokens = dataset.num_response_tokens() - len(dataset)  # the first token of each comes with the prefill
    assert rounds["tree"] < rounds["chain"] < tokens
    for name, value in found.items():
        assert value == pytest.approx(tokens / rounds[name], rel=0.02)  # features were rounded to bfloat16


def test_the_replay_emits_the_recorded_text_whatever_is_drafted(decoded):
    dataset, _, _ = decoded
    conversations = [dataset[i] for i in range(len(dataset))]
    target = RecordedTarget(conversations, 16, torch.device("cpu"))
    engine = Engine(Parts(target, RandomTreeDrafter(16), FixedPolicy(BLOCK, BUDGET)), max_batch=3)
    requests = []
    requests = [
        engine.submit(
            c.tokens[: c.response_start].tolist(), GenerationSettings(max_tokens=len(c.tokens) - c.response_start)
        )
        for c in conversations
    ]
    engine.run()
    for request, conversation in zip(requests, conversations, strict=True):
        assert [*request.prompt, *request.tokens] == conversation.tokens.tolist()
    assert sum(r.statistics.accepted for r in requests) > 0
