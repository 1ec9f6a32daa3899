"""Recorded conversations are what the target says, with the rows that a drafter learns from."""

import pytest
import torch

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.policies.fixed import FixedPolicy
from paceline.train.recorder import TOP, Recorder
from paceline.types import GenerationSettings
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
