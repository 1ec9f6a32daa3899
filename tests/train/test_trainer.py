"""A run goes on from where it was killed, refuses what does not fit, and leaves the best drafter."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState

from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.specblock import load_specblock
from paceline.checkpoints.target_weights import TargetWeights
from paceline.checkpoints.z_lab import load_dflash
from paceline.errors import CheckpointError, InputError, TrainingDivergedError
from paceline.learning.specblock_loss import SpecBlockLossConfig
from paceline.records import exclusive
from paceline.train.config import DrafterShape, LossConfig, OptimizerConfig, TrainConfig
from paceline.train.methods.dflash import draft_config
from paceline.train.methods.specblock import draft_config as specblock_config
from paceline.train.shards import write_shard
from paceline.train.start import layer_states
from paceline.train.trainer import train
from tiny_training import END, TAPS, conversation, tiny_config, tiny_specblock_config, write_data, write_target

SLOWLY = """
import sys, time
from pathlib import Path
from tiny_training import tiny_config
from paceline.train.trainer import train, _Run
step = _Run._step
def slow_step(run, window):
    time.sleep(0.05)
    step(run, window)
_Run._step = slow_step
train(tiny_config(Path(sys.argv[1])))
"""


@pytest.fixture
def folder(tmp_path):
    write_target(tmp_path / "target")
    write_data(tmp_path / "data")
    return tmp_path


def records(run: Path, name: str = "loss") -> dict[int, float]:
    found = [json.loads(line) for line in (run / "train.log").read_text().splitlines()]
    return {record["step"]: record[name] for record in found if name in record}


@pytest.mark.slow
def test_a_run_that_was_killed_repeats_an_uninterrupted_one_loss_by_loss(folder):
    config = tiny_config(folder)
    whole = replace(config, run=folder / "whole")
    train(whole)
    command = [sys.executable, "-c", SLOWLY, str(folder)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL)
    log = folder / "run" / "train.log"
    killed_after = 2 + int.from_bytes(os.urandom(1)) % 8
    until = time.monotonic() + 120
    while not log.exists() or len(log.read_text().splitlines()) < killed_after:
        assert process.poll() is None and time.monotonic() < until, "the run ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "run" / "drafter").exists()
    train(config)
    assert records(folder / "run") == pytest.approx(records(folder / "whole"), rel=1e-5)
    assert list(records(folder / "run")) == list(range(1, 13))


def test_the_loss_falls_and_the_best_drafter_is_exported_with_its_making(folder):
    config = tiny_config(folder, steps=60, optimizer=OptimizerConfig(warmup_steps=2, learning_rate=1e-2))
    drafter = train(config)
    losses = records(config.run)
    assert losses[60] < 0.8 * losses[1]
    network, metadata = load_dflash(drafter), read_metadata(drafter)
    assert network.config.target_layer_ids == TAPS and network.config.draft_vocab_size == 30
    assert network.t2d[END]
    measured = metadata["held_out_acceptance_length"]
    assert measured == {name: records(config.run, f"acceptance_{name}")[60] for name in ("chain", "tree_6")}
    assert 1.0 < measured["chain"] <= measured["tree_6"]
    assert metadata["step"] == 60 and metadata["response_tokens"] > 0


def test_a_second_process_in_the_same_folder_is_refused(folder):
    config = tiny_config(folder, max_minutes=0.0)
    train(config)
    with exclusive(config.run), pytest.raises(InputError, match="another process is at work"):
        train(config)


def test_prompts_that_fill_the_allowed_length_are_left_out(folder):
    long = conversation(40, response_start=30, seed=77)
    write_shard(folder / "data" / "shard-00009.safetensors", [long])
    config = tiny_config(folder, max_length=24, steps=8)
    train(config)
    assert len(records(config.run)) == 8
    with pytest.raises(InputError, match="no conversation has two response tokens"):
        train(replace(config, run=folder / "short", max_length=6))


def test_a_loss_that_is_no_number_ends_the_run(folder):
    config = tiny_config(folder, optimizer=OptimizerConfig(kind="adamw", learning_rate=1e30, warmup_steps=0, clip=1e30))
    with pytest.raises(TrainingDivergedError, match="lower learning rate"):
        train(config)
    assert not (config.run / "drafter").exists()


@pytest.mark.parametrize(
    "changes",
    [{"threads": 0}, {"max_length": 0}, {"tree_budget": 0}, {"steps": 0}, {"held_out": 1.0}],
)
def test_absurd_settings_are_refused(folder, changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        train(tiny_config(folder, **changes))


@pytest.mark.parametrize(
    "changes", [{"learning_rate": float("nan")}, {"betas": (0.9, 1.0)}, {"weight_decay": -1.0}, {"clip": 0.0}]
)
def test_absurd_optimizers_are_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        OptimizerConfig(**changes)


def test_conversations_of_another_vocabulary_are_refused(folder):
    wrong = conversation(20, seed=1)
    wrong.tokens[3] = 999
    write_shard(folder / "data" / "shard-00009.safetensors", [wrong])
    with pytest.raises(InputError, match="hold token 999"):
        train(tiny_config(folder))


def test_only_a_better_drafter_replaces_the_exported_one(folder):
    config = tiny_config(folder, minutes_per_probe=0.0, steps=4)
    values = iter([1.5, 1.4, 1.6, 1.2])
    drafter = train(config, lambda network: {"tree": next(values)})
    assert read_metadata(drafter)["step"] == 3
    assert read_metadata(drafter)["held_out_acceptance_length"] == {"tree": 1.6}


def test_a_run_that_the_time_limit_stops_before_its_first_measurement_leaves_a_drafter(folder):
    config = tiny_config(folder, steps=100_000, max_minutes=1 / 60)
    drafter = train(config)
    assert 0 < read_metadata(drafter)["step"] < 100_000
    assert read_metadata(drafter)["held_out_acceptance_length"]["chain"] >= 1.0


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ({"target_layer_ids": [0, 1], "chat_template_sha256": "x"}, r"recorded at target layers \(0, 1\)"),
        ([], "must hold a JSON object"),
    ],
)
def test_conversations_of_other_layers_are_refused(folder, recorded, message):
    (folder / "data" / "settings.json").write_text(json.dumps(recorded))
    with pytest.raises(InputError, match=message):
        train(tiny_config(folder))


def test_the_time_limit_stops_the_run_and_the_same_call_goes_on(folder):
    config = tiny_config(folder)
    train(replace(config, max_minutes=0.0))
    assert not (config.run / "drafter").exists()
    train(replace(config, max_minutes=1e-9, minutes_per_checkpoint=60.0))
    train(config)
    assert list(records(config.run)) == list(range(1, 13))


def test_the_last_two_checkpoints_are_kept_and_nothing_half_written(folder):
    train(tiny_config(folder))
    names = sorted(p.name for p in (folder / "run" / "checkpoints").iterdir())
    assert names == ["step-00000011.safetensors", "step-00000012.safetensors"]


def test_a_finished_run_does_nothing_more(folder):
    config = tiny_config(folder)
    train(config)
    before = (config.run / "train.log").read_text()
    train(config)
    assert (config.run / "train.log").read_text() == before


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"steps": 13}, "steps"),
        ({"seed": 1}, "seed"),
        ({"loss": LossConfig(soft=0.25)}, "loss"),
        ({"optimizer": OptimizerConfig(kind="adamw")}, "optimizer"),
    ],
)
def test_another_setting_is_refused_by_name_and_the_run_left_alone(folder, change, name):
    config = tiny_config(folder, max_minutes=0.0)
    train(config)
    before = sorted(p.name for p in config.run.rglob("*"))
    with pytest.raises(InputError, match=f"begun with {name} = "):
        train(replace(config, **change))
    assert sorted(p.name for p in config.run.rglob("*")) == before


def test_settings_that_do_not_move_the_losses_may_change(folder):
    config = tiny_config(folder)
    train(replace(config, max_minutes=0.0))
    train(replace(config, chunk_blocks=2, steps_per_log=4, minutes_per_checkpoint=9.0))
    assert list(records(config.run)) == [4, 8, 12]


def test_shards_that_came_later_are_not_read_by_a_run_that_goes_on(folder):
    config = tiny_config(folder)
    train(replace(config, max_minutes=0.0))
    write_data(folder / "data", num_shards=4)
    train(config)
    assert len(json.loads((config.run / "provenance.json").read_text())["data"]["shards"]) == 2


def test_a_shard_that_changed_is_refused(folder):
    config = tiny_config(folder, max_minutes=0.0)
    train(config)
    write_data(folder / "data", num_shards=1, per_shard=5)
    with pytest.raises(InputError, match="changed since"):
        train(config)


def test_a_damaged_training_checkpoint_is_refused_by_name(folder):
    config = tiny_config(folder)
    train(config)
    newest = config.run / "checkpoints" / "step-00000012.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="step-00000012"):
        train(config)


def test_a_run_can_start_from_an_earlier_drafter_of_the_same_shape(folder):
    config = tiny_config(folder, average=0.0)
    drafter = train(config)
    later = replace(config, run=folder / "later", start_from=drafter, steps=2)
    train(later)
    assert records(later.run)[1] < records(config.run)[1]
    other = replace(config.shape, block_size=5)
    with pytest.raises(InputError, match="block_size = 4 but 5"):
        train(replace(later, run=folder / "another", shape=other))


def test_layers_named_for_the_start_are_copied_from_the_target(folder):
    target = TargetWeights(folder / "target")
    (state,) = layer_states(target, (1,))
    assert torch.equal(state["mlp.gate_proj.weight"], target["model.layers.1.mlp.gate_proj.weight"])
    with pytest.raises(InputError, match="layer 7"):
        layer_states(target, (7,))
    shape = DrafterShape(num_layers=1, block_size=4, target_layer_ids=TAPS, draft_vocab_size=None, init_layers=(1,))
    train(tiny_config(folder, shape=shape, steps=1, average=0.0))


def test_features_of_other_taps_are_refused(folder):
    config = tiny_config(folder)
    with pytest.raises(InputError, match="32 columns but 1 tapped layers make 16"):
        train(replace(config, shape=replace(config.shape, target_layer_ids=(1,))))


def test_a_measure_of_the_callers_own_takes_the_probes_place(folder):
    seen = []

    def measure(network):
        seen.append(network.training)
        return {"mine": 1.5}

    drafter = train(tiny_config(folder, steps=2), measure)
    assert seen == [False] and read_metadata(drafter)["held_out_acceptance_length"] == {"mine": 1.5}


def test_mixed_precision_trains_too(folder):
    AcceleratorState._reset_state()  # accelerate holds the precision of a process from its first use on
    train(tiny_config(folder, steps=2, precision="bf16"))
    AcceleratorState._reset_state()
    assert all(loss > 0 for loss in records(folder / "run").values())


def test_the_drafters_shape_is_the_targets_where_not_given(folder):
    target = TargetWeights(folder / "target")
    config = draft_config(DrafterShape(target_layer_ids=TAPS, draft_vocab_size=None), target.config, 5, target.folder)
    assert (config.hidden_size, config.intermediate_size, config.num_key_value_heads, config.head_dim) == (16, 32, 1, 8)
    assert torch.equal(target.head(), target.embedding())


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"num_anchors": 0}, {"held_out": 0.0}, {"average": 1.0}, {"chunk_blocks": 0}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        TrainConfig(data=Path("d"), run=Path("r"), **wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shape": {"num_layers": 2, "num_blocks": 3, "own_head": True, "init_layers": (0, 2)}},
        {"shape": {"num_layers": 2, "shifts": False, "inherits": False}},
        {"loss": SpecBlockLossConfig(valid_prefix=False, rank=False)},
    ],
    ids=["default", "larger", "without shifts", "without a rank head"],
)
def test_a_specblock_run_learns_and_exports_what_loads(folder, changes):
    optimizer = OptimizerConfig(warmup_steps=2, learning_rate=1e-2)
    config = tiny_specblock_config(folder, steps=40, optimizer=optimizer, **changes)
    drafter = train(config)
    losses = records(config.run)
    assert losses[40] < 0.9 * losses[1]
    network, metadata = load_specblock(drafter), read_metadata(drafter)
    assert network.config == train_specblock_config(config.shape, folder)
    names = ["static_6", "tree_6"] if config.loss.rank else ["static_6"]
    assert list(metadata["held_out_acceptance_length"]) == names
    assert min(metadata["held_out_acceptance_length"].values()) > 1.0


def train_specblock_config(shape, folder):
    """The network's config that a run's shape means, with the rank head's width that checkpoints tell."""
    return specblock_config(shape, TargetWeights(folder / "target").config, folder / "target")


@pytest.mark.slow
def test_a_stopped_specblock_run_goes_on_as_if_it_had_not_been(folder):
    train(tiny_specblock_config(folder, run=folder / "whole"))
    config = tiny_specblock_config(folder)
    train(replace(config, max_minutes=0.0))
    while not (config.run / "drafter").exists():
        train(replace(config, max_minutes=0.002))
    train(config)
    assert records(config.run) == pytest.approx(records(folder / "whole"), rel=1e-5)


def test_a_specblock_run_starts_from_an_earlier_drafter_of_the_same_shape(folder):
    earlier = train(tiny_specblock_config(folder))
    config = tiny_specblock_config(folder, run=folder / "second", start_from=earlier)
    assert load_specblock(train(config)).config == load_specblock(earlier).config
    other = tiny_specblock_config(folder, run=folder / "third", start_from=earlier, shape={"num_slots": 2})
    with pytest.raises(InputError, match="num_slots = 3 but 2 was asked for"):
        train(other)


@pytest.mark.parametrize("changes", [{"num_slots": 0}, {"num_blocks": 0}, {"init_layers": (1, 2)}])
def test_absurd_specblock_shapes_are_refused(folder, changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        tiny_specblock_config(folder, shape=changes)


@pytest.mark.parametrize("changes", [{"soft": 1.5}, {"rank_share": -1.0}, {"under_cost": float("nan")}])
def test_absurd_specblock_losses_are_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        SpecBlockLossConfig(**changes)
