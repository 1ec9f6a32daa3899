"""The dialect of EAGLE-3 checkpoints: the layouts that are about spelled by hand, round trips, and damage."""

import json

import pytest
import torch
from safetensors.torch import save_file

from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.draft_weights import check_fits, read_metadata
from paceline.checkpoints.eagle3 import load_eagle3, save_eagle3
from paceline.errors import CheckpointError, UnsupportedModelError
from tiny_dflash import VOCABULARY
from tiny_eagle3 import tiny_eagle3

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 1,
    "draft_vocab_size": 20,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
LAYER = {
    "self_attn.q_proj.weight": (32, 64),
    "self_attn.k_proj.weight": (16, 64),
    "self_attn.v_proj.weight": (16, 64),
    "self_attn.o_proj.weight": (32, 32),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
    "input_layernorm.weight": (32,),
    "hidden_norm.weight": (32,),
    "post_attention_layernorm.weight": (32,),
}
OUTSIDE = {"fc.weight": (32, 96), "norm.weight": (32,), "lm_head.weight": (20, 32)}


def write(folder, config=CONFIG, layer="midlayer.", before="", **changes):
    """A folder as others write it: offsets in d2t, the words of t2d."""
    folder.mkdir()
    shapes = OUTSIDE | {f"{layer}{name}": shape for name, shape in LAYER.items()}
    weights = {before + name: torch.randn(shape) for name, shape in shapes.items()}
    ids = torch.arange(20) * 2
    weights["d2t"], weights["t2d"] = ids - torch.arange(20), torch.zeros(VOCABULARY, dtype=torch.bool)
    weights["t2d"][ids] = True
    weights |= changes
    save_file({name: w for name, w in weights.items() if w is not None}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("layer", "before"), [("midlayer.", ""), ("layers.0.", ""), ("layers.0.", "model.")])
def test_the_published_layouts_load_alike(tmp_path, layer, before):
    path = write(tmp_path / "drafter", layer=layer, before=before)
    assert dialect_of(path) is Dialect.EAGLE3
    network = load_eagle3(path, num_target_layers=10)
    config = network.config
    assert config.target_layer_ids == (1, 4, 6) and config.draft_vocab_size == 20
    assert config.has_head and not config.has_embedding and config.rope.theta == 500000.0
    assert not config.norm_before_residual
    assert network.draft_to_target(torch.arange(20)).tolist() == list(range(0, 40, 2))


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Eagle3LlamaForCausalLM"])
def test_other_names_of_the_architecture_are_known(tmp_path, name):
    path = write(tmp_path / "drafter", CONFIG | {"architectures": [name]})
    assert dialect_of(path) is Dialect.EAGLE3 and load_eagle3(path, 10).config.draft_vocab_size == 20


@pytest.mark.parametrize(
    ("keys", "taps"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}}, (1, 3, 6)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 7]}, (1, 3, 6)),
        ({"eagle_aux_hidden_state_layer_ids": None, "eagle_config": None}, (1, 4, 6)),
    ],
)
def test_tapped_layers_are_outputs_in_one_place_and_inputs_in_the_other(tmp_path, keys, taps):
    assert load_eagle3(write(tmp_path / "drafter", CONFIG | keys), 10).config.target_layer_ids == taps


def test_an_embedding_and_a_target_of_another_width_of_its_own(tmp_path):
    changes = {"embed_tokens.weight": torch.randn(VOCABULARY, 32), "fc.weight": torch.randn(32, 3 * 40)}
    config = CONFIG | {"target_hidden_size": 40, "norm_before_residual": True, "num_hidden_layers": 36}
    network = load_eagle3(write(tmp_path / "drafter", config, **changes), 10)
    assert network.config.has_embedding and network.config.target_hidden_size == 40
    assert network.config.norm_before_residual and network.midlayer.norm_before_residual
    check_fits(network.config, 40, VOCABULARY, 10, "a target")
    with pytest.raises(CheckpointError, match="borrows the target's embedding"):
        load_eagle3(write(tmp_path / "other", config, **changes | {"embed_tokens.weight": None}), 10)


def test_stored_frequencies_are_passed_over(tmp_path):
    changes = {"midlayer.self_attn.rotary_emb.inv_freq": torch.randn(4)}
    load_eagle3(write(tmp_path / "drafter", **changes), 10)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft_vocab_size": 30},
        {"has_head": False, "draft_vocab_size": 30},
        {"has_embedding": True, "target_hidden_size": 64, "norm_before_residual": True},
    ],
)
def test_a_round_trip_gives_the_same_network(tmp_path, changes):
    network = tiny_eagle3(**changes)
    save_eagle3(network, tmp_path / "drafter", {"step": 7}, torch.float32)
    again = load_eagle3(tmp_path / "drafter")
    assert again.config == network.config and read_metadata(tmp_path / "drafter") == {"step": 7}
    for name, weight in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"architectures": ["QwenForCausalLM"]}, CheckpointError, "architectures"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
        ({"hidden_size": None}, CheckpointError, "hidden_size"),
        ({"draft_vocab_size": "20"}, CheckpointError, "draft_vocab_size"),
        ({"draft_vocab_size": 500}, CheckpointError, "draft_vocab_size"),
        ({"num_key_value_heads": 3}, CheckpointError, "num_attention_heads"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}, CheckpointError, "target_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, CheckpointError, "target_layer_ids"),
        ({"eagle_config": [1]}, CheckpointError, "eagle_config"),
        ({"head_dim": 4}, CheckpointError, "shape"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_with_the_key(tmp_path, change, error, says):
    path = write(tmp_path / "drafter", CONFIG | change)
    with pytest.raises(error, match=says):
        load_eagle3(path, num_target_layers=10)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"norm.weight": None}, "lacks the weights norm.weight"),
        ({"midlayer.hidden_norm.weight": None}, "lacks the weights midlayer.hidden_norm.weight"),
        ({"layers.0.hidden_norm.weight": torch.zeros(32)}, "twice, under two names"),
        ({"layers.1.hidden_norm.weight": torch.zeros(32)}, "has weights that an EAGLE-3 draft network does not"),
        ({"norm.weight": torch.full((32,), torch.nan)}, "NaN or infinity"),
        ({"d2t": torch.full((20,), 49)}, "d2t"),
        ({"t2d": torch.ones(VOCABULARY, dtype=torch.bool)}, "t2d"),
        ({"lm_head.weight": torch.zeros(19, 32)}, "lm_head"),
    ],
)
def test_damaged_weights_are_refused_by_name(tmp_path, change, says):
    path = write(tmp_path / "drafter", CONFIG, **change)
    with pytest.raises(CheckpointError, match=says):
        load_eagle3(path, num_target_layers=10)


def test_the_tapped_layers_are_not_guessed(tmp_path):
    with pytest.raises(CheckpointError, match="load it together with its target"):
        load_eagle3(write(tmp_path / "drafter"))
