"""The dialect of published SpecBlock checkpoints: round trips, the layout spelled by hand, and damage."""

import json

import pytest
import torch
from safetensors.torch import save_file

from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.draft_weights import check_fits, read_metadata
from paceline.checkpoints.specblock import load_specblock, save_specblock
from paceline.checkpoints.taps import default_taps
from paceline.errors import CheckpointError, UnsupportedModelError
from tiny_dflash import VOCABULARY, target_weights, tiny_network
from tiny_specblock import tiny_specblock

CONFIG = {
    "architectures": ["LlamaForCausalLMSpecBlock"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 1,
    "diffspec_draft_token_num": 3,
    "draft_vocab_size": 20,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rank_classes": 4,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
LAYER = {
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.v_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
    "input_layernorm.weight": (32,),
    "post_attention_layernorm.weight": (32,),
}
SHAPES = {
    "input_layer.condition_proj.weight": (32, 96),
    "input_layer.fuse.weight": (32, 96),
    "input_layer.condition_norm.weight": (32,),
    "input_layer.token_norm.weight": (32,),
    "input_layer.query_norm.weight": (32,),
    "input_layer.position_queries.weight": (3, 32),
    "shift_proj.0.weight": (32, 64),
    "norm.weight": (32,),
    "lm_head.weight": (20, 32),
    "rank_head.0.weight": (16, 47),
    "rank_head.2.weight": (4, 16),
} | {f"layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}


def write(folder, config=CONFIG, **changes):
    """A folder as the authors' code would write it: offsets in d2t, the words of t2d."""
    folder.mkdir()
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    ids = torch.arange(20) * 2
    weights["d2t"], weights["t2d"] = ids - torch.arange(20), torch.zeros(VOCABULARY, dtype=torch.bool)
    weights["t2d"][ids] = True
    weights |= changes
    save_file({name: w for name, w in weights.items() if w is not None}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_published_layout_loads_with_the_layers_it_taps_told_by_its_target(tmp_path):
    path = write(tmp_path / "drafter")
    assert dialect_of(path) is Dialect.SPECBLOCK
    network = load_specblock(path, num_target_layers=10)
    config = network.config
    assert config.target_layer_ids == default_taps(10) == (1, 4, 6)
    assert (config.num_slots, config.draft_vocab_size, config.rank_hidden_size) == (3, 20, 16)
    assert config.has_head and not config.has_embedding and config.rope.theta == 500000.0
    assert network.draft_to_target(torch.arange(20)).tolist() == list(range(0, 40, 2))
    network.attach(*target_weights())
    assert network.slot_logits(torch.randn(2, 32)).shape == (2, 20)


def test_the_tapped_layers_are_not_guessed(tmp_path):
    with pytest.raises(CheckpointError, match="load it together with its target"):
        load_specblock(write(tmp_path / "drafter"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"draft_vocab_size": 30}, {"has_head": False, "draft_vocab_size": 30}, {"shifts": False}, {"inherits": False}],
)
def test_a_round_trip_gives_the_same_network(tmp_path, changes):
    network = tiny_specblock(**changes)
    save_specblock(network, tmp_path / "drafter", {"step": 7}, torch.float32)
    again = load_specblock(tmp_path / "drafter")
    assert again.config == network.config and read_metadata(tmp_path / "drafter") == {"step": 7}
    for name, weight in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    check_fits(again.config, 32, VOCABULARY, 4, "a target")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, CheckpointError, "architectures"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ({"rank_classes": 5}, UnsupportedModelError, "rank_classes"),
        ({"diffspec_draft_token_num": "4"}, CheckpointError, "diffspec_draft_token_num"),
        ({"diffspec_draft_token_num": None}, CheckpointError, "diffspec_draft_token_num"),
        ({"diffspec_draft_token_num": 0}, CheckpointError, "num_slots"),
        ({"draft_vocab_size": 5}, CheckpointError, "draft_vocab_size"),
        ({"num_key_value_heads": 3}, CheckpointError, "num_attention_heads"),
        ({"target_layer_ids": [1, 1, 2]}, CheckpointError, "target_layer_ids"),
        ({"target_layer_ids": 3}, CheckpointError, "target_layer_ids"),
        ({"head_dim": 4}, CheckpointError, "shape"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_with_the_key(tmp_path, change, error, says):
    path = write(tmp_path / "drafter", CONFIG | change)
    with pytest.raises(error, match=says):
        load_specblock(path, num_target_layers=10)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"norm.weight": None}, "lacks the weights norm.weight"),
        ({"rank_head.0.weight": None}, "rank_head.0.weight"),
        ({"midlayer.weight": torch.zeros(3)}, "has weights that a SpecBlock draft network does not"),
        ({"norm.weight": torch.full((32,), torch.nan)}, "NaN or infinity"),
        ({"d2t": torch.full((20,), 49)}, "d2t"),
        ({"t2d": torch.ones(VOCABULARY, dtype=torch.bool)}, "t2d"),
        ({"lm_head.weight": torch.zeros(19, 32)}, "lm_head"),
        ({"rank_head.0.weight": torch.zeros(16, 46)}, "rank_head"),
    ],
)
def test_damaged_weights_are_refused_by_name(tmp_path, change, says):
    path = write(tmp_path / "drafter", CONFIG, **change)
    with pytest.raises(CheckpointError, match=says):
        load_specblock(path, num_target_layers=10)


def test_the_dialects_are_told_apart_and_others_are_named(tmp_path):
    from paceline.checkpoints.z_lab import save_dflash

    save_dflash(tiny_network(), tmp_path / "dflash")
    assert dialect_of(tmp_path / "dflash") is Dialect.Z_LAB
    with pytest.raises(CheckpointError, match="a drafter has one of"):
        dialect_of(write(tmp_path / "other", CONFIG | {"architectures": ["SomethingElse"]}))
