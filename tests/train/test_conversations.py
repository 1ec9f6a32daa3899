"""Recorded conversations are what the target says, with the rows that a drafter learns from."""

import json

import pytest
import torch

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.errors import InputError
from paceline.learning.recorder import TOP, Recorder
from paceline.loading import load
from paceline.policies.fixed import FixedPolicy
from paceline.train.conversations import record_conversations
from paceline.train.conversations_config import ConversationsConfig
from paceline.train.data import open_dataset
from paceline.types import GenerationSettings
from tiny_folder import write_tiny_folder
from tiny_models import RandomTreeDrafter, tiny_target


@pytest.mark.parametrize("drafts", [False, True])
def test_row_t_describes_token_t_and_the_distribution_after_it(drafts):
    target = tiny_target("llama")
    recorder = Recorder((0, 2))
    drafter = RandomTreeDrafter(40) if drafts else None
    engine = Engine(Parts(target, drafter, FixedPolicy(5, 12), recorder), max_batch=2)
    prompts = [[1, 2, 3], [7, 8], [4, 4, 4, 4]]
    requests = [engine.submit(prompt, GenerationSettings(max_tokens=9)) for prompt in prompts]
    for request in requests[:2]:
        recorder.watch(request.sequence)
    engine.run()
    for request in requests[:2]:
        tokens = [*request.prompt, *request.tokens]
        conversation = recorder.take(request.sequence, tokens, len(request.prompt))
        assert conversation.tokens.tolist() == tokens
        assert conversation.response_start == len(request.prompt)
        whole = target.prefill(target.new_cache(1, len(tokens)), 0, tokens, (0, 2))
        torch.testing.assert_close(conversation.features[:-1].double(), whole.features[0, :-1], atol=2e-2, rtol=2e-2)
        assert conversation.features[-1].abs().sum() == 0
        with torch.inference_mode():
            logits = target.model(torch.tensor([tokens])).logits[0]
        first = len(request.prompt) - 1
        expected = logits.log_softmax(-1).topk(TOP)
        assert conversation.top_ids[first:-1].tolist() == expected.indices[first:-1].tolist()
        recorded = conversation.top_log_probs[first:-1].double()
        torch.testing.assert_close(recorded, expected.values[first:-1], atol=1e-2, rtol=1e-2)
        assert conversation.top_ids[first:-1, 0].tolist() == request.tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("target"))


def small(folder, out, **changes) -> ConversationsConfig:
    settings = {
        "out": out,
        "target": str(folder),
        "target_layer_ids": (0, 2),
        "response_tokens": 60,
        "max_prompt_tokens": 8,
        "max_response_tokens": 9,
        "conversations_per_shard": 4,
        "batch": 3,
    }
    return ConversationsConfig(**(settings | changes))


def shards(out) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("shard-*")}


def test_a_recording_that_was_killed_goes_on_with_the_first_missing_shard(folder, tmp_path):
    whole = record_conversations(small(folder, tmp_path / "whole"))
    record_conversations(small(folder, tmp_path / "killed", response_tokens=1))
    begun = shards(tmp_path / "killed")
    assert len(begun) == 1 < len(shards(whole))
    (tmp_path / "killed" / "shard-00001.safetensors.tmp").write_bytes(b"half")
    record_conversations(small(folder, tmp_path / "killed"))
    complete = {name: data for name, data in shards(tmp_path / "killed").items() if not name.endswith(".tmp")}
    assert complete == shards(whole)
    dataset = open_dataset(whole)
    assert 60 <= dataset.num_response_tokens() < 60 + 4 * 9


def test_responses_are_the_targets_greedy_answers(folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": str(i), "turns": [f"w{i} w{i + 1} w3"]} for i in range(5)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = small(folder, tmp_path / "out", prompts=(prompts,), response_tokens=10_000)
    dataset = open_dataset(record_conversations(config))
    model = load(str(folder), "none")
    assert len(dataset) == 5
    for line, conversation in zip(lines, (dataset[i] for i in range(5)), strict=True):
        answer = model.generate(line["turns"][0], GenerationSettings(max_tokens=9))
        assert conversation.tokens[conversation.response_start :].tolist() == list(answer.tokens)


def test_other_settings_are_refused_in_a_folder_that_was_begun(folder, tmp_path):
    record_conversations(small(folder, tmp_path / "out", response_tokens=1))
    before = shards(tmp_path / "out")
    with pytest.raises(InputError, match="begun with seed = 0 but 1"):
        record_conversations(small(folder, tmp_path / "out", seed=1))
    assert shards(tmp_path / "out") == before
