"""The dialect of parallel heads: round trips and damage."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.heads import load_heads, save_heads
from paceline.errors import CheckpointError
from tiny_heads import tiny_heads


@pytest.mark.parametrize(
    "changes",
    [{}, {"draft_vocab_size": 20}, {"has_head": True, "num_layers": 2}, {"has_embedding": True, "has_head": True}],
)
def test_what_is_saved_loads_as_it_was(tmp_path, changes):
    network = tiny_heads(**changes)
    if "draft_vocab_size" in changes:
        network.set_draft_vocabulary(torch.arange(20) * 2)
    save_heads(network, tmp_path / "drafter", {"made": "here"}, torch.float32)
    found = load_heads(tmp_path / "drafter")
    assert found.config == network.config and dialect_of(tmp_path / "drafter") is Dialect.HEADS
    assert found.state_dict().keys() == network.state_dict().keys()
    assert all(torch.equal(weight, network.state_dict()[name]) for name, weight in found.state_dict().items())
    assert read_metadata(tmp_path / "drafter") == {"made": "here"}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"architectures": ["Other"]}, "architectures"),
        ({"num_heads": None}, "num_heads"),
        ({"num_heads": 0}, "num_heads"),
        ({"num_heads": 1.5}, "whole number"),
        ({"num_heads": 5}, "lacks the weights"),
        ({"num_heads": 3}, "has weights that"),
        ({"target_layer_ids": [0]}, "shape"),
        ({"target_layer_ids": "all"}, "list of whole numbers"),
        ({"rms_norm_eps": "small"}, "wrong kind"),
    ],
)
def test_configs_that_do_not_fit_the_weights_are_refused(tmp_path, keys, says):
    save_heads(tiny_heads(), tmp_path / "drafter")
    config = json.loads((tmp_path / "drafter" / "config.json").read_text()) | keys
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=says):
        load_heads(tmp_path / "drafter")


def test_numbers_that_are_none_are_refused(tmp_path):
    save_heads(tiny_heads(), tmp_path / "drafter")
    weights = load_file(tmp_path / "drafter" / "model.safetensors")
    weights["fc.weight"][0, 0] = torch.nan
    save_file(weights, tmp_path / "drafter" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"NaN or infinity in fc\.weight"):
        load_heads(tmp_path / "drafter")
