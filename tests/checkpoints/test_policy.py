"""Checkpoints of policies, and what identifies the pair that they belong to."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline.checkpoints.digest as digest_module
from paceline.checkpoints.digest import checkpoint_digest
from paceline.checkpoints.policy import check_pair, load_policy, save_policy
from paceline.errors import CheckpointError
from paceline.models.policy_head import PolicyHead, PolicyHeadConfig

PAIR = {"target_digest": "aaaa", "drafter_digest": "bbbb", "chat_template_sha256": "cccc"}


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    head = PolicyHead(PolicyHeadConfig(num_inputs=6, block_sizes=(4, 8), width=5)).eval()
    save_policy(head, tmp_path / "policy", {**PAIR, "note": 1}, torch.float32)
    return head, tmp_path / "policy"


def change_config(path, **changes):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def test_what_is_saved_comes_back(saved):
    head, path = saved
    loaded, about = load_policy(path)
    assert loaded.config == head.config and about == {**PAIR, "note": 1}
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    x = torch.randn(3, 6)
    assert torch.equal(loaded(x), head(x))


def test_another_target_or_drafter_is_refused_by_name(saved):
    _, path = saved
    _, about = load_policy(path)
    check_pair(about, PAIR, path)
    with pytest.raises(CheckpointError, match=r"another target \(digest aaaa, not cccc\)"):
        check_pair(about, {**PAIR, "target_digest": "cccc"}, path)
    with pytest.warns(UserWarning, match="another chat template"):
        check_pair(about, {**PAIR, "chat_template_sha256": "dddd"}, path)
    with pytest.raises(CheckpointError, match="another drafter"):
        check_pair(about, {**PAIR, "drafter_digest": "cccc"}, path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "no block-size policy"),
        ({"paceline": {}}, "does not say which target"),
        ({"extra": 1}, r"unknown keys \['extra'\]"),
        ({"width": "wide"}, "cannot be used"),
        ({"width": 5.0}, "width is 5.0|cannot be used"),
        ({"width": 10**9}, "width is 1000000000"),
        ({"block_sizes": [0, 8]}, "within 2 to"),
        ({"width": 7}, "other weights than its config says"),
        ({"num_layers": 3}, "other weights than its config says"),
        ({"block_sizes": [8]}, "two or more"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved, changes, sentence):
    change_config(saved[1], **changes)
    with pytest.raises(CheckpointError, match=sentence):
        load_policy(saved[1])


def test_weights_that_are_no_numbers_are_refused(saved):
    head, path = saved
    weights = {name: w.clone() for name, w in head.state_dict().items()}
    weights["last.bias"][0] = torch.nan
    save_file(weights, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"NaN or infinity in last\.bias"):
        load_policy(path)


def test_a_copy_has_the_same_digest_and_other_weights_another(saved, tmp_path):
    _, path = saved
    digest = checkpoint_digest(path)
    shutil.copytree(path, tmp_path / "copy")
    assert checkpoint_digest(tmp_path / "copy") == digest
    change_config(tmp_path / "copy", transformers_version="99")  # as another version of a library would write it
    save_file(load_file(path / "model.safetensors"), tmp_path / "copy" / "model.safetensors", {"written": "later"})
    assert checkpoint_digest(tmp_path / "copy") == digest
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-30] ^= 1
    (tmp_path / "copy" / "model.safetensors").write_bytes(data)
    assert checkpoint_digest(tmp_path / "copy") != digest


def test_of_a_large_file_every_tensor_is_looked_at(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(digest_module, "_WHOLE_BYTES", 0)
    _, path = saved
    before = checkpoint_digest(path)
    weights = load_file(path / "model.safetensors")
    for name in weights:
        changed = {n: w.clone() for n, w in weights.items()}
        changed[name].view(-1)[0] += 1.0
        shutil.copytree(path, tmp_path / name)
        save_file(changed, tmp_path / name / "model.safetensors")
        assert checkpoint_digest(tmp_path / name) != before, name


@pytest.mark.parametrize("kept", [0, 5, 40, -4])
def test_a_file_that_is_cut_off_has_no_digest(saved, kept):
    _, path = saved
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:kept])
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        checkpoint_digest(path)


def test_a_folder_without_a_config_has_no_digest(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere does not exist"):
        checkpoint_digest(tmp_path / "nowhere")
