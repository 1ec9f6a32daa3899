"""Starting from the target's weights."""

import torch
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from paceline.models.initialise import initialise_from_target
from tiny_dflash import HIDDEN, tiny_network


def target_layers():
    config = Qwen3Config(
        hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8
    )
    layers = [Qwen3DecoderLayer(config, i) for i in range(2)]
    for layer in layers:
        layer.input_layernorm.weight.data.uniform_(0.5, 1.5)
    return [layer.state_dict() for layer in layers]


def test_weights_of_equal_shape_are_copied_and_named():
    network, states = tiny_network(), target_layers()
    done = initialise_from_target(network, states, final_norm=torch.full((HIDDEN,), 3.0))
    assert len(done) == 2 * len(states[0]) + 3
    for layer, state in zip(network.layers, states, strict=True):
        for name, weight in layer.named_parameters():
            assert torch.equal(weight, state[name])
    assert network.norm.weight.unique().tolist() == [3.0]
    norms = torch.stack([state["input_layernorm.weight"] for state in states])
    torch.testing.assert_close(network.hidden_norm.weight.data, norms.mean(0))


def test_a_weight_of_another_shape_keeps_its_start():
    network, states = tiny_network(), target_layers()
    before = network.layers[0].mlp.up_proj.weight.clone()
    states[0]["mlp.up_proj.weight"] = torch.zeros(7, HIDDEN)
    done = initialise_from_target(network, states)
    assert "layers.0.mlp.up_proj.weight" not in done
    assert torch.equal(network.layers[0].mlp.up_proj.weight, before)


def test_the_context_starts_as_the_last_tap_or_as_the_mean_of_all():
    network = tiny_network()
    features = torch.randn(1, 3, 2 * HIDDEN)
    first, last = features.split(HIDDEN, -1)
    initialise_from_target(network, [{}, {}], context="last")
    torch.testing.assert_close(network.fc(features), last)
    initialise_from_target(network, [{}, {}], context="mean")
    torch.testing.assert_close(network.fc(features), (first + last) / 2)
