"""Runs that train EAGLE-3 drafters."""

import pytest

from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.eagle3 import load_eagle3
from paceline.checkpoints.target_weights import TargetWeights
from paceline.errors import InputError
from paceline.learning.eagle3_loss import Eagle3LossConfig
from paceline.train.config import OptimizerConfig
from paceline.train.methods.eagle3 import draft_config
from paceline.train.trainer import train
from tiny_training import tiny_eagle3_config, write_data, write_target


@pytest.fixture
def folder(tmp_path):
    write_target(tmp_path / "target")
    write_data(tmp_path / "data")
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {"shape": {"own_head": True, "init_layers": (2,), "norm_before_residual": True}}, marks=pytest.mark.slow
        ),
        pytest.param({"loss": Eagle3LossConfig(steps=1)}, marks=pytest.mark.slow),
    ],
    ids=["default", "from a layer of the target", "one step"],
)
def test_a_run_learns_and_exports_what_loads(folder, changes):
    optimizer = OptimizerConfig(warmup_steps=2, learning_rate=1e-2)
    config = tiny_eagle3_config(folder, steps=120, batch_size=8, optimizer=optimizer, **changes)
    drafter = train(config)
    network, metadata = load_eagle3(drafter), read_metadata(drafter)
    target = TargetWeights(folder / "target")
    assert network.config == draft_config(config.shape, target.config, folder / "target")
    assert list(metadata["held_out_acceptance_length"]) == ["static_6", "tree_6"]
    assert metadata["held_out_acceptance_length"]["tree_6"] > 1.2


@pytest.mark.slow
def test_a_run_starts_from_an_earlier_drafter_of_the_same_shape(folder):
    earlier = train(tiny_eagle3_config(folder))
    config = tiny_eagle3_config(folder, run=folder / "second", start_from=earlier)
    assert load_eagle3(train(config)).config == load_eagle3(earlier).config
    other = {"norm_before_residual": True}
    with pytest.raises(InputError, match="norm_before_residual = False but True was asked for"):
        train(tiny_eagle3_config(folder, run=folder / "third", start_from=earlier, shape=other))


def test_a_layer_is_what_there_is(folder):
    with pytest.raises(InputError, match="has one layer"):
        tiny_eagle3_config(folder, shape={"num_layers": 2})
