"""Runs that train parallel heads."""

import pytest

from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.heads import load_heads
from paceline.checkpoints.target_weights import TargetWeights
from paceline.errors import InputError
from paceline.train.config import OptimizerConfig
from paceline.train.heads_config import HeadsShape
from paceline.train.methods.heads import draft_config
from paceline.train.trainer import train
from tiny_training import tiny_heads_config, write_data, write_target


@pytest.fixture
def folder(tmp_path):
    write_target(tmp_path / "target")
    write_data(tmp_path / "data")
    return tmp_path


def test_a_run_learns_and_exports_what_loads(folder):
    optimizer = OptimizerConfig(warmup_steps=2, learning_rate=1e-2)
    config = tiny_heads_config(folder, steps=120, batch_size=8, optimizer=optimizer)
    drafter = train(config)
    network, metadata = load_heads(drafter), read_metadata(drafter)
    assert network.config == draft_config(config.shape, TargetWeights(folder / "target").config)
    assert list(metadata["held_out_acceptance_length"]) == ["static_6", "tree_6"]
    assert metadata["held_out_acceptance_length"]["tree_6"] > 1.2


def test_a_run_starts_from_earlier_heads_of_the_same_shape(folder):
    earlier = train(tiny_heads_config(folder))
    again = train(tiny_heads_config(folder, run=folder / "second", start_from=earlier))
    assert load_heads(again).config == load_heads(earlier).config
    with pytest.raises(InputError, match="num_heads = 3 but 2 was asked for"):
        train(tiny_heads_config(folder, run=folder / "third", start_from=earlier, shape={"num_heads": 2}))


@pytest.mark.parametrize("bad", [{"num_heads": 0}, {"num_layers": 0}, {"target_layer_ids": ()}])
def test_heads_that_are_none_are_refused(bad):
    with pytest.raises(InputError, match="at least one"):
        HeadsShape(**bad)
