import os

import pytest
import torch
from safetensors.torch import load_file

from paceline.tensor_files import save_tensors


def test_a_tensor_file_has_the_mode_of_any_new_file_and_leaves_no_other(tmp_path):
    save_tensors(tmp_path / "x.safetensors", {"a": torch.arange(3)}, {"k": "v"})
    (tmp_path / "text").write_text("")
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "text").stat().st_mode
    assert load_file(tmp_path / "x.safetensors")["a"].tolist() == [0, 1, 2]
    assert sorted(os.listdir(tmp_path)) == ["text", "x.safetensors"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.arange(3)})
    with pytest.raises(ValueError):
        save_tensors(path, {"a": "no tensor"})
    assert load_file(path)["a"].tolist() == [0, 1, 2]
