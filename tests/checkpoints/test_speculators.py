"""The speculators dialect: its layouts spelled by hand are the networks that the methods' own dialects describe."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.eagle3 import load_eagle3, save_eagle3
from paceline.checkpoints.z_lab import load_dflash, save_dflash
from paceline.errors import CheckpointError, UnsupportedModelError
from tiny_dflash import VOCABULARY, tiny_network
from tiny_eagle3 import tiny_eagle3

LAYER = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
}
AROUND = {
    "has_no_defaults_at_init": False,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/model"}},
    "speculators_version": "0.5.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "draft_vocab_size": 30,
}
EAGLE3 = AROUND | {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "norm_before_residual": True,
    "norm_before_fc": False,
    "eagle_aux_hidden_state_layer_ids": [1, 3],
    "transformer_layer_config": LAYER,
}
DFLASH = AROUND | {
    "architectures": ["DFlashDraftModel"],
    "speculators_model_type": "dflash",
    "block_size": 5,
    "mask_token_id": 7,
    "aux_hidden_state_layer_ids": [1, 3],
    "transformer_layer_config": LAYER | {"model_type": "qwen3"},
}


def written(folder, config, weights):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def eagle3(tmp_path):
    save_eagle3(tiny_eagle3(draft_vocab_size=30, norm_before_residual=True), tmp_path / "own", dtype=torch.float32)
    weights = load_file(tmp_path / "own" / "model.safetensors")
    return {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}


@pytest.fixture
def dflash(tmp_path):
    save_dflash(tiny_network(num_hidden_layers=1, draft_vocab_size=30), tmp_path / "own", dtype=torch.float32)
    return load_file(tmp_path / "own" / "model.safetensors")


def test_an_eagle3_drafter_is_that_of_its_own_dialect(tmp_path, eagle3):
    path = written(tmp_path / "drafter", EAGLE3, eagle3)
    assert dialect_of(path) is Dialect.EAGLE3
    found, own = load_eagle3(path, 4), load_eagle3(tmp_path / "own")
    assert found.config.target_layer_ids == own.config.target_layer_ids == (0, 2)
    assert found.config.norm_before_residual and found.config.draft_vocab_size == 30
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in own.state_dict().items())


def test_a_dflash_drafter_is_that_of_its_own_dialect(tmp_path, dflash):
    path = written(tmp_path / "drafter", DFLASH, dflash)
    assert dialect_of(path) is Dialect.Z_LAB
    found, own = load_dflash(path, num_target_layers=4), load_dflash(tmp_path / "own")
    assert found.config.target_layer_ids == own.config.target_layer_ids == (0, 2)
    assert (found.config.block_size, found.config.mask_token_id, found.config.draft_vocab_size) == (5, 7, 30)
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in own.state_dict().items())


@pytest.mark.parametrize(
    ("config", "change", "error", "says"),
    [
        (EAGLE3, {"speculators_model_type": "medusa"}, CheckpointError, "'medusa', but known are dflash, eagle3"),
        (EAGLE3, {"norm_before_fc": True}, UnsupportedModelError, "norm_before_fc"),
        (EAGLE3, {"transformer_layer_config": None}, CheckpointError, "without the required hidden_size"),
        (EAGLE3, {"transformer_layer_config": 5}, CheckpointError, "transformer_layer_config"),
        (EAGLE3, {"eagle_aux_hidden_state_layer_ids": [0, 3]}, CheckpointError, "target_layer_ids"),
        (DFLASH, {"projector_type": "domino"}, UnsupportedModelError, "projector_type"),
        (DFLASH, {"sample_from_anchor": True}, UnsupportedModelError, "sample_from_anchor"),
        (DFLASH, {"mask_token_id": None}, CheckpointError, "without the required mask_token_id"),
        (DFLASH, {"aux_hidden_state_layer_ids": "all"}, CheckpointError, "target_layer_ids"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_key(tmp_path, eagle3, config, change, error, says):
    path = written(tmp_path / "drafter", config | change, eagle3)
    with pytest.raises(error, match=says):
        load_eagle3(path, 4) if config is EAGLE3 else load_dflash(path, num_target_layers=4)


def test_weights_in_pytorchs_own_format_are_read_as_tensors_and_nothing_else(tmp_path, eagle3):
    path = written(tmp_path / "drafter", EAGLE3, eagle3)
    (path / "model.safetensors").unlink()
    torch.save(eagle3, path / "pytorch_model.bin")
    own = load_eagle3(tmp_path / "own")
    found = load_eagle3(path, 4).state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in own.state_dict().items())
    for content in (eagle3 | {"norm.weight": print}, [1, 2], eagle3 | {"norm.weight": "words"}):
        torch.save(content, path / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=r"cannot be read as tensors|something else than named tensors"):
            load_eagle3(path, 4)
    (path / "pytorch_model.bin").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="cannot be read as tensors"):
        load_eagle3(path, 4)
