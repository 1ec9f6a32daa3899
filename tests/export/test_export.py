"""Export: each form reads back as the network it was, is checked before it is written, and is whole or not there."""

import json

import pytest
import torch
from safetensors.torch import load_file

from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.eagle3 import load_eagle3, save_eagle3
from paceline.checkpoints.specblock import save_specblock
from paceline.checkpoints.z_lab import load_dflash, save_dflash
from paceline.cli import main
from paceline.doctor.examine import examine
from paceline.errors import CheckpointError
from paceline.export import parity, run
from paceline.export.run import export
from tiny_dflash import tiny_network
from tiny_eagle3 import tiny_eagle3
from tiny_folder import write_tiny_folder
from tiny_specblock import tiny_specblock

IDS = torch.arange(20) * 2


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("target"))


def write_eagle3(folder, **changes):
    network = tiny_eagle3(draft_vocab_size=20, max_position_embeddings=256, **changes)
    network.set_draft_vocabulary(IDS)
    save_eagle3(network, folder, {"made": "here"})
    return folder


def write_dflash(folder, **changes):
    network = tiny_network(max_position_embeddings=256, **changes)
    if network.config.draft_vocab_size is not None:
        network.set_draft_vocabulary(IDS)
    save_dflash(network, folder, {"made": "here"})
    return folder


@pytest.mark.parametrize(
    ("write", "changes", "form", "load"),
    [
        (write_eagle3, {}, "eagle3", load_eagle3),
        (write_eagle3, {"norm_before_residual": True, "has_embedding": True}, "speculators", load_eagle3),
        (write_eagle3, {"target_layer_ids": (0, 1, 2)}, "speculators", load_eagle3),
        (write_dflash, {}, "z-lab", load_dflash),
        (write_dflash, {}, "speculators", load_dflash),
        (write_dflash, {"draft_vocab_size": 20, "has_head": True}, "speculators", load_dflash),
    ],
)
def test_what_is_exported_is_the_same_network(write, changes, form, load, target, tmp_path):
    source = write(tmp_path / "source", **changes)
    done = export(source, tmp_path / "out", form, target, "some/model")
    assert done.tokens_compared >= 12 * 3
    before, after = load(source), load(tmp_path / "out")
    assert before.config == after.config and dialect_of(tmp_path / "out") is dialect_of(source)
    for name, weight in before.state_dict().items():
        assert torch.equal(weight, after.state_dict()[name]), name
    assert read_metadata(tmp_path / "out") == {"made": "here"}
    assert examine(tmp_path / "out", None).findings == []


def test_the_speculators_form_names_inputs_of_layers_and_what_servers_ask_for(target, tmp_path):
    export(write_eagle3(tmp_path / "source"), tmp_path / "eagle3", "speculators", target, "some/model")
    config = json.loads((tmp_path / "eagle3" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3] and config["norm_before_residual"] is False
    proposal = config["speculators_config"]["proposal_methods"][0]
    assert proposal["speculative_tokens"] == 3 and config["speculators_model_type"] == "eagle3"
    verifier = config["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": "some/model", "architectures": ["LlamaForCausalLM"]}
    assert config["transformer_layer_config"]["num_aux_hidden_states"] == 2
    names = set(load_file(tmp_path / "eagle3" / "model.safetensors"))
    assert "layers.0.self_attn.q_proj.weight" in names and not any(name.startswith("midlayer") for name in names)
    export(write_dflash(tmp_path / "blocks"), tmp_path / "dflash", "speculators", target, "some/model")
    config = json.loads((tmp_path / "dflash" / "config.json").read_text())
    assert config["aux_hidden_state_layer_ids"] == [1, 3] and config["mask_token_id"] == 5
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3


def test_a_reduced_head_that_is_borrowed_is_written_out(target, tmp_path):
    source = write_dflash(tmp_path / "source", draft_vocab_size=20)
    export(source, tmp_path / "out", "speculators", target, "some/model")
    head = load_file(target / "model.safetensors").get("lm_head.weight")
    written = load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"]
    assert head is not None and torch.equal(written, head[IDS].bfloat16())
    assert dialect_of(tmp_path / "out") is Dialect.Z_LAB


def test_a_network_that_serves_otherwise_than_it_learned_is_not_written(target, tmp_path, monkeypatch):
    trained = parity._trained_logits
    monkeypatch.setattr(parity, "_trained_logits", lambda *args: trained(*args).roll(1, -1))
    source = write_eagle3(tmp_path / "source")
    with pytest.raises(CheckpointError, match="drafts other tokens when it serves"):
        export(source, tmp_path / "out", "speculators", target, "some/model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_what_cannot_be_exported_is_refused_in_a_sentence(target, tmp_path, capsys):
    save_specblock(tiny_specblock(draft_vocab_size=20), tmp_path / "specblock")
    write_eagle3(tmp_path / "eagle3")
    write_eagle3(tmp_path / "other", num_target_layers=9)
    for path, form, said in (
        ("specblock", "speculators", "no other server reads"),
        ("eagle3", "z-lab", "choose 'eagle3' or 'speculators'"),
        ("other", "eagle3", "made for another target"),
        ("nowhere", "eagle3", "does not exist"),
    ):
        asked = ["export", str(tmp_path / path), "--to", form, "--out", str(tmp_path / "out"), "--target", str(target)]
        assert main(asked) == 2
        assert said in capsys.readouterr().err
    asked[1], asked[3] = str(tmp_path / "eagle3"), "eagle3"
    assert main(asked) == 0 and "drafted" in capsys.readouterr().out
    assert main(asked) == 2 and "is there already" in capsys.readouterr().err


def test_of_two_exports_to_one_place_the_later_one_says_that_it_is_taken(target, tmp_path, monkeypatch):
    source, out = write_dflash(tmp_path / "source"), tmp_path / "out"
    forms = run.check_forms

    def meanwhile(network):
        monkeypatch.setattr(run, "check_forms", forms)
        export(source, out, "z-lab", target, "some/model")
        return forms(network)

    monkeypatch.setattr(run, "check_forms", meanwhile)
    with pytest.raises(CheckpointError, match="is there already"):
        export(source, out, "speculators", target, "some/model")
    assert "speculators_config" not in (out / "config.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


@pytest.mark.parametrize(("form", "name"), [("z-lab", "some/model"), ("speculators", "")])
def test_a_name_that_would_not_be_written_is_refused(form, name, target, tmp_path, capsys):
    source = write_dflash(tmp_path / "source")
    asked = ["export", str(source), "--out", str(tmp_path / "out"), "--to", form, "--verifier", name]
    assert main(asked) == 2 and "verifier" in capsys.readouterr().err
    asked = ["export", str(source), "--out", "/proc/nowhere", "--target", str(target)]
    assert main(asked) == 2 and "name another place" in capsys.readouterr().err
