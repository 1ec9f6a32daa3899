"""A tree verified in one pass gives what the model gives on each path alone."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.mamba import MambaConfig
from transformers.models.t5 import T5Config

from paceline.drafters.base import DraftRequest
from paceline.errors import InputError, UnsupportedModelError
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.tree import pack
from tiny_models import CONFIGS, FLOAT32_ONLY, RandomTreeDrafter, tiny_model, tiny_target

FAMILIES = sorted(CONFIGS)


def _tolerance(family: str) -> float:
    return 2e-3 if family in FLOAT32_ONLY else 1e-9


def _direct_logits(target: HuggingFaceTarget, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return target.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def _path(tree, node: int) -> list[int]:
    tokens = []
    while node:
        tokens.append(int(tree.tokens[node - 1]))
        node = int(tree.parents[node - 1])
    return tokens[::-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_of_a_ragged_batch_sees_its_own_path_only(family):
    target = tiny_target(family)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [5, 6], [7, 7, 7, 1, 2]]
    anchors = [3, 9, 2]
    drafter = RandomTreeDrafter(40, seed=3)
    cache = target.new_cache(3, 64)
    for row, prompt in enumerate(prompts):
        target.prefill(cache, row, prompt)
    trees = drafter.draft(None, [DraftRequest([a], 5, b, 9) for a, b in zip(anchors, (12, 4, 7), strict=True)], None)
    result = target.verify(cache, pack(trees, torch.tensor(anchors)))
    for row, (prompt, anchor, tree) in enumerate(zip(prompts, anchors, trees, strict=True)):
        for node in range(tree.num_nodes + 1):
            expected = _direct_logits(target, [*prompt, anchor, *_path(tree, node)])
            torch.testing.assert_close(result.logits[row, node], expected, atol=_tolerance(family), rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_after_keeping_a_path_the_next_pass_continues_from_it(family):
    target = tiny_target(family)
    cache = target.new_cache(2, 64)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 8]]
    for row, prompt in enumerate(prompts):
        target.prefill(cache, row, prompt)
    drafter = RandomTreeDrafter(40, seed=5)
    trees = drafter.draft(None, [DraftRequest([1], 5, 10, 9), DraftRequest([2], 5, 10, 9)], None)
    target.verify(cache, pack(trees, torch.tensor([1, 2])))
    deepest = [int(tree.depths().argmax()) + 1 for tree in trees]
    nodes = [_node_path(tree, node) for tree, node in zip(trees, deepest, strict=True)]
    cache.keep(nodes)
    contexts = [
        [*prompt, anchor, *_path(tree, node)]
        for prompt, anchor, tree, node in zip(prompts, [1, 2], trees, deepest, strict=True)
    ]
    assert cache.lengths[:2] == [len(c) for c in contexts]
    empty = drafter.draft(None, [DraftRequest([4], 5, 0, 9)] * 2, None)
    result = target.verify(cache, pack(empty, torch.tensor([4, 4])))
    for row, context in enumerate(contexts):
        expected = _direct_logits(target, [*context, 4])
        torch.testing.assert_close(result.logits[row, 0], expected, atol=_tolerance(family), rtol=1e-3)


def _node_path(tree, node: int) -> list[int]:
    nodes = []
    while node:
        nodes.append(node)
        node = int(tree.parents[node - 1])
    return nodes[::-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_read_in_chunks_gives_the_same_logits_and_features(family):
    prompt = [(7 * i) % 40 for i in range(23)]
    whole, chunked = tiny_target(family), tiny_target(family)
    chunked.prefill_chunk = 4
    results = []
    for target in (whole, chunked):
        results.append(target.prefill(target.new_cache(1, 32), 0, prompt, [0, 2]))
    torch.testing.assert_close(results[0].logits, results[1].logits, atol=_tolerance(family), rtol=1e-3)
    torch.testing.assert_close(results[0].features, results[1].features, atol=_tolerance(family), rtol=1e-3)


def test_features_are_the_outputs_of_the_tapped_layers():
    target = tiny_target("llama")
    prompt = [3, 1, 4, 1, 5]
    features = target.prefill(target.new_cache(1, 16), 0, prompt, [0, 2, 1]).features
    with torch.inference_mode():
        hidden = target.model.model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    # hidden_states[0] is the embedding, so layer i's output is hidden_states[i + 1]; the last is normed.
    torch.testing.assert_close(features[..., :32], hidden[1])
    torch.testing.assert_close(features[..., 64:], hidden[2])


def test_a_tap_outside_the_model_is_refused():
    with pytest.raises(InputError, match="taps layer 3, but tiny-llama has layers 0 to 2"):
        tiny_target("llama").check_layers([0, 3])


def test_a_recurrent_model_is_refused_with_the_reason():
    model = AutoModelForCausalLM.from_config(
        MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2, state_size=4)
    )
    with pytest.raises(UnsupportedModelError, match="cannot be rolled back"):
        HuggingFaceTarget(model, "mamba")


def test_an_encoder_decoder_model_is_refused_with_the_reason():
    from transformers import T5ForConditionalGeneration

    config = T5Config(vocab_size=20, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        HuggingFaceTarget(T5ForConditionalGeneration(config), "t5")


def test_rotary_scaling_that_depends_on_the_batch_is_refused():
    model = tiny_model("llama")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match="rotary"):
        HuggingFaceTarget(model, "dynamic-llama")
