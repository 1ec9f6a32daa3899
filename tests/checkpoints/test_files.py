"""Checkpoint folders: shards, damage, and replacement in one step."""

import json

import pytest
import torch
from safetensors.torch import save_file

from paceline.checkpoints.files import read_config, read_weights, replacing_folder, write_checkpoint
from paceline.errors import CheckpointError

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.int64)}


def one_sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text
    return text


@pytest.fixture
def sharded(tmp_path):
    save_file({"a": WEIGHTS["a"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": WEIGHTS["b"]}, tmp_path / "model-00002-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return tmp_path


def test_shards_are_read_as_one(sharded):
    weights = read_weights(sharded)
    assert set(weights) == {"a", "b"}
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in weights)


def test_a_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002") as error:
        read_weights(sharded)
    one_sentence(error)


def test_a_tensor_that_no_shard_holds_is_named(sharded):
    save_file({"c": WEIGHTS["b"]}, sharded / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="names b,") as error:
        read_weights(sharded)
    one_sentence(error)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", 3])
def test_an_index_never_leads_out_of_its_folder(sharded, shard):
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match="beside its index") as error:
        read_weights(sharded)
    one_sentence(error)


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_file_is_one_sentence(tmp_path, kept):
    write_checkpoint(tmp_path, {}, WEIGHTS)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:kept])
    with pytest.raises(CheckpointError, match="not a whole safetensors file") as error:
        read_weights(tmp_path)
    one_sentence(error)


def test_a_folder_without_weights_is_one_sentence(tmp_path):
    with pytest.raises(CheckpointError, match="no weights") as error:
        read_weights(tmp_path)
    one_sentence(error)


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"{", "JSON"), (b"[1]", "list"), (b"\xff\xfe", "JSON"), (None, "no config.json")],
    ids=["broken", "not an object", "not text", "absent"],
)
def test_a_config_that_cannot_be_read_is_one_sentence(tmp_path, content, word):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=word) as error:
        read_config(tmp_path)
    one_sentence(error)


def test_a_missing_folder_and_a_file_in_its_place_are_told_apart(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist") as error:
        read_config(tmp_path / "nowhere")
    one_sentence(error)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file") as error:
        read_config(tmp_path / "file")
    one_sentence(error)


def test_a_folder_is_replaced_only_when_the_new_one_is_whole(tmp_path):
    place = tmp_path / "drafter"
    with replacing_folder(place) as folder:
        write_checkpoint(folder, {"version": 1}, WEIGHTS)
    with pytest.raises(RuntimeError), replacing_folder(place) as folder:
        write_checkpoint(folder, {"version": 2}, WEIGHTS)
        raise RuntimeError("the disk is full")
    assert read_config(place) == {"version": 1}
    with replacing_folder(place) as folder:
        write_checkpoint(folder, {"version": 3}, WEIGHTS)
        assert read_config(place) == {"version": 1}
    assert read_config(place) == {"version": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_a_folder_that_is_no_checkpoint_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="not a checkpoint folder"), replacing_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").exists()
