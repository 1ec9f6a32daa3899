"""Shards come back as they were written, or not at all."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import CheckpointError
from paceline.train.shards import read_shard, write_shard
from tiny_training import conversation


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "shard-00000.safetensors"
    write_shard(path, [conversation(9, 4, seed=1), conversation(15, 6, seed=2)])
    return path


def test_conversations_come_back_as_they_were_written(path):
    shard = read_shard(path)
    assert len(shard) == 2
    for found, wanted in ((shard[0], conversation(9, 4, seed=1)), (shard[1], conversation(15, 6, seed=2))):
        assert found.response_start == wanted.response_start
        for name in ("tokens", "features", "top_ids", "top_log_probs"):
            assert torch.equal(getattr(found, name), getattr(wanted, name))


def test_nothing_but_the_shard_is_left_in_the_folder(path):
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kept", [0, 5, 0.5, 0.99])
def test_a_truncated_shard_is_refused_by_name(path, kept):
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(len(whole) * kept)])
    with pytest.raises(CheckpointError, match="shard-00000"):
        read_shard(path)


def test_a_missing_shard_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="shard-00007"):
        read_shard(tmp_path / "shard-00007.safetensors")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("top_ids", lambda t: None, "lacks top_ids"),
        ("features", lambda t: t.float(), "float32"),
        ("features", lambda t: t[:-1], "disagrees"),
        ("lengths", lambda t: t + 1, "disagrees"),
        ("response_starts", lambda t: t + 50, "disagrees"),
        ("response_starts", lambda t: t * 0, "disagrees"),
        ("top_log_probs", lambda t: t[:, :3], "disagrees"),
    ],
)
def test_a_shard_that_does_not_fit_together_is_refused(path, name, change, said):
    tensors = load_file(path)
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=said):
        read_shard(path)


def test_a_cut_conversation_keeps_its_beginning():
    cut = conversation(20, 6).cut(10)
    assert len(cut.tokens) == len(cut.features) == len(cut.top_ids) == len(cut.top_log_probs) == 10
    assert cut.response_start == 6
    assert conversation(20, 6).cut(4).response_start == 4
