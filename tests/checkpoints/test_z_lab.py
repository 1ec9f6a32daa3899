"""The z-lab dialect: round trips, the layout spelled by hand, and every kind of damage."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.checkpoints.draft_weights import check_fits, read_metadata
from paceline.checkpoints.z_lab import load_dflash, read_dflash_config, save_dflash
from paceline.errors import CheckpointError, UnsupportedModelError
from paceline.models.rope import LinearScaling, Llama3Scaling, RopeConfig
from tiny_dflash import HIDDEN, VOCABULARY, target_weights, tiny_network

CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": 4,
    "bos_token_id": 1,
    "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2]},
    "dtype": "bfloat16",
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "layer_types": ["full_attention"],
    "max_position_embeddings": 40960,
    "max_window_layers": 1,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "num_target_layers": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 50,
}
SHAPES = {
    "fc.weight": (32, 64),
    "hidden_norm.weight": (32,),
    "norm.weight": (32,),
    "layers.0.self_attn.q_proj.weight": (32, 32),
    "layers.0.self_attn.k_proj.weight": (16, 32),
    "layers.0.self_attn.v_proj.weight": (16, 32),
    "layers.0.self_attn.o_proj.weight": (32, 32),
    "layers.0.self_attn.q_norm.weight": (8,),
    "layers.0.self_attn.k_norm.weight": (8,),
    "layers.0.mlp.gate_proj.weight": (48, 32),
    "layers.0.mlp.up_proj.weight": (48, 32),
    "layers.0.mlp.down_proj.weight": (32, 48),
    "layers.0.input_layernorm.weight": (32,),
    "layers.0.post_attention_layernorm.weight": (32,),
}


@pytest.fixture
def by_hand(tmp_path):
    """A checkpoint in the published layout, spelled above."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def change_config(path, drop=(), **changes):
    config = {**json.loads((path / "config.json").read_text()), **changes}
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in drop}))


def change_weights(path, **changes):
    weights = {**load_file(path / "model.safetensors"), **changes}
    save_file({k: v for k, v in weights.items() if v is not None}, path / "model.safetensors")


def refusal(path, kind=CheckpointError):
    with pytest.raises(kind) as error:
        load_dflash(path)
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text
    return text


def test_the_published_layout_loads(by_hand):
    network = load_dflash(by_hand)
    stored = load_file(by_hand / "model.safetensors")
    state = network.state_dict()
    assert set(state) == set(SHAPES)
    assert all(torch.equal(state[name], stored[name].float()) for name in SHAPES)
    config = network.config
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (4, 5, (0, 2))
    assert (config.num_target_layers, config.rope.theta, config.max_position_embeddings) == (4, 1e6, 40960)
    assert not config.has_embedding and not config.has_head and not network.training
    network.attach(*target_weights())
    hidden = network.training_forward(
        torch.randn(1, 6, 2 * HIDDEN), torch.zeros(1, 6, dtype=torch.int64), torch.tensor([[3]])
    )
    assert network.draft_logits(hidden).isfinite().all()


def test_newer_files_keep_the_block_size_inside_dflash_config(by_hand):
    inside = {"mask_token_id": 5, "target_layer_ids": [0, 2], "block_size": 7}
    change_config(by_hand, drop=["block_size"], dflash_config=inside)
    assert read_dflash_config(by_hand).block_size == 7


def test_newer_files_keep_rope_in_rope_parameters(by_hand):
    scaled = {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}
    change_config(by_hand, drop=["rope_theta", "rope_scaling"], rope_parameters=scaled)
    assert read_dflash_config(by_hand).rope == RopeConfig(500.0, scaling=LinearScaling(2.0))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft_vocab_size": 6},
        {"has_embedding": True, "has_head": True, "draft_vocab_size": 6},
        {"has_embedding": True, "has_head": True, "target_hidden_size": 40},
        {"rope": RopeConfig(5e5, 0.5, Llama3Scaling(8.0, 1.0, 4.0, 8192)), "rms_norm_eps": 1e-5},
    ],
    ids=["borrowing", "reduced", "own head", "other target width", "scaled rope"],
)
def test_what_is_saved_loads_equal(tmp_path, changes):
    network = tiny_network(**changes)
    if "draft_vocab_size" in changes:
        network.set_draft_vocabulary(torch.tensor([2, 3, 11, 30, 31, 49]))
    if "target_hidden_size" not in changes:
        network.attach(*target_weights())
    save_dflash(network, tmp_path / "drafter", {"target": "tiny"}, dtype=torch.float32)
    loaded = load_dflash(tmp_path / "drafter")
    assert loaded.config == network.config
    before, after = network.state_dict(), loaded.state_dict()
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(loaded.rope.frequencies, network.rope.frequencies)
    assert read_metadata(tmp_path / "drafter") == {"target": "tiny"}


def test_weights_are_stored_in_bfloat16_unless_told_otherwise(tmp_path):
    network = tiny_network(draft_vocab_size=6)
    save_dflash(network, tmp_path / "drafter")
    stored = load_file(tmp_path / "drafter" / "model.safetensors")
    assert stored["fc.weight"].dtype == torch.bfloat16
    assert (stored["d2t"].dtype, stored["t2d"].dtype) == (torch.int64, torch.bool)
    assert load_dflash(tmp_path / "drafter", torch.bfloat16).fc.weight.dtype == torch.bfloat16
    assert read_metadata(tmp_path / "drafter") == {}


def test_shards_load_as_the_whole(by_hand):
    whole = load_file(by_hand / "model.safetensors")
    names = sorted(whole)
    parts = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for shard, held in parts.items():
        save_file({name: whole[name] for name in held}, by_hand / shard)
    weight_map = {name: shard for shard, held in parts.items() for name in held}
    (by_hand / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (by_hand / "model.safetensors").unlink()
    assert set(load_dflash(by_hand).state_dict()) == set(SHAPES)


def test_d2t_alone_tells_the_draft_vocabulary(by_hand):
    change_weights(by_hand, d2t=torch.tensor([1, 1, 20]))
    network = load_dflash(by_hand)
    assert network.config.draft_vocab_size == 3
    assert network.draft_vocabulary().tolist() == [1, 2, 22]
    assert network.t2d.nonzero().flatten().tolist() == [1, 2, 22]


@pytest.mark.parametrize(
    "offsets", [[1, 0, 0], [0, 0, 48], [-1, 0, 0]], ids=["twice", "above the vocabulary", "below zero"]
)
def test_offsets_that_name_no_distinct_tokens_are_refused(by_hand, offsets):
    change_weights(by_hand, d2t=torch.tensor(offsets))
    assert "d2t" in refusal(by_hand)


def test_t2d_must_say_what_d2t_says(by_hand):
    change_weights(by_hand, d2t=torch.tensor([1, 1, 20]), t2d=torch.zeros(VOCABULARY, dtype=torch.bool))
    assert "t2d" in refusal(by_hand)


@pytest.mark.parametrize("key", ["hidden_size", "num_target_layers", "block_size", "vocab_size"])
def test_a_missing_key_is_named(by_hand, key):
    change_config(by_hand, drop=[key])
    assert f"required {key}" in refusal(by_hand)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"speculators_model_type": "medusa"}, "speculators"),
        ({"dflash_config": {"mask_token_id": 5}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 9]}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": "<mask>", "target_layer_ids": [0, 2]}}, "mask_token_id"),
        ({"dflash_config": [5]}, "dflash_config"),
        ({"hidden_size": 32.5}, "hidden_size"),
        ({"head_dim": "8"}, "head_dim"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"rms_norm_eps": "small"}, "small"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"target_hidden_size": 64}, "of its own"),
        ({"intermediate_size": 40}, "mlp"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(by_hand, changes, word):
    change_config(by_hand, **changes)
    assert word in refusal(by_hand)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding_window 4096"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(by_hand, changes, word):
    change_config(by_hand, **changes)
    assert word in refusal(by_hand, UnsupportedModelError)


def test_a_window_that_is_switched_off_does_not_matter(by_hand):
    change_config(by_hand, sliding_window=4096, use_sliding_window=False)
    load_dflash(by_hand)


@pytest.mark.parametrize(
    ("name", "weight", "word"),
    [
        ("fc.weight", None, "lacks the weights fc.weight"),
        ("fc.weight", torch.zeros(32, 96), "fc.weight of shape [32, 96]"),
        ("midlayer.fc.weight", torch.zeros(3), "midlayer.fc.weight"),
    ],
    ids=["missing", "misshaped", "unknown"],
)
def test_weights_that_do_not_match_are_named(by_hand, name, weight, word):
    change_weights(by_hand, **{name: weight})
    assert word in refusal(by_hand)


def test_a_drafter_fits_its_own_target_only(by_hand):
    config = read_dflash_config(by_hand)
    check_fits(config, hidden_size=32, vocab_size=50, num_layers=4, name="tiny")
    for sizes, word in [
        ((64, 50, 4), "hidden size 32, not 64"),
        ((32, 51, 4), "vocabulary"),
        ((32, 50, 5), "layers"),
    ]:
        with pytest.raises(CheckpointError, match=word) as error:
            check_fits(config, *sizes, name="other")
        assert "other" in str(error.value) and str(error.value).endswith(".")
