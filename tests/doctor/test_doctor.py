"""The doctor: healthy checkpoints of every dialect yield nothing, and each planted fault is found by its name."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.checkpoints.draft_weights import METADATA
from paceline.checkpoints.eagle3 import save_eagle3
from paceline.checkpoints.eagle3_config import TAPS
from paceline.checkpoints.heads import save_heads
from paceline.checkpoints.specblock import save_specblock
from paceline.checkpoints.taps import default_taps
from paceline.checkpoints.z_lab import save_dflash
from paceline.cli import main
from paceline.doctor.beside_target import read_target
from paceline.doctor.examine import examine
from paceline.doctor.finding import Severity
from paceline.doctor.measured import AS_STORED, PLAIN_ROPE, TARGETS_ROPE, Measured, judge
from paceline.embedded import DRAFTER_KINDS, embedded_drafter
from paceline.errors import CheckpointError
from paceline.export.run import export
from paceline.sources import template_digest, tokenizer_digest
from tiny_dflash import tiny_network
from tiny_eagle3 import tiny_eagle3
from tiny_folder import write_tiny_folder
from tiny_heads import tiny_heads
from tiny_specblock import tiny_specblock


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return read_target(str(write_tiny_folder(tmp_path_factory.mktemp("target"))))


def about(target):
    return {
        "chat_template_sha256": template_digest(target.tokenizer.chat_template),
        "tokenizer_sha256": tokenizer_digest(target.tokenizer),
    }


def write_eagle3(folder, target):
    """A reduced vocabulary of every other word, and its own head."""
    network = tiny_eagle3(draft_vocab_size=20, max_position_embeddings=256)
    network.set_draft_vocabulary(torch.arange(20) * 2)
    save_eagle3(network, folder, about(target))
    return folder


def write_dflash(folder, target):
    save_dflash(tiny_network(mask_token_id=0, max_position_embeddings=256), folder, about(target))
    return folder


def write_specblock(folder, target):
    network = tiny_specblock(draft_vocab_size=20, max_position_embeddings=256)
    network.set_draft_vocabulary(torch.arange(20) * 2)
    save_specblock(network, folder, about(target))
    return folder


def changed(folder, **changes):
    """The folder's config.json with other values; None takes a key out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def reweighted(folder, **changes):
    """The folder's weights with others, `__` standing for a dot; None takes one out, a function makes a new one."""
    weights = load_file(folder / "model.safetensors")
    for key, value in changes.items():
        name = key.replace("__", ".")
        weights[name] = value(weights[name]) if callable(value) else value
    kept = {name: weight.contiguous() for name, weight in weights.items() if weight is not None}
    save_file(kept, folder / "model.safetensors")


def spoken(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    changed(folder, **{METADATA: config[METADATA] | changes})


WRITERS = {"dflash": write_dflash, "eagle3": write_eagle3, "specblock": write_specblock}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_healthy_checkpoint_yields_no_finding(kind, target, tmp_path):
    report = examine(WRITERS[kind](tmp_path / "drafter", target), target)
    assert report.findings == [] and not report.has_errors
    assert report.facts["dialect"].endswith("written by paceline") and report.facts["tapped layers"].startswith(
        "0, 2 of 4"
    )


def test_what_is_not_recorded_is_no_finding(target, tmp_path):
    deep = replace(target, config=target.config | {"num_hidden_layers": 12})
    network = tiny_eagle3(draft_vocab_size=20, max_position_embeddings=256, num_target_layers=12,
                          target_layer_ids=default_taps(12))  # fmt: skip
    save_eagle3(network, folder := tmp_path / "drafter")
    unnamed = dict.fromkeys(("eagle_config", TAPS, "num_target_layers"))
    changed(folder, **unnamed)
    reweighted(folder, t2d=None)
    for beside in (deep, None):
        report = examine(folder, beside)
        assert report.findings == [] and report.facts["dialect"] == "SafeAILab"
        assert report.facts["tapped layers"].startswith("not named")


@pytest.mark.parametrize(
    ("write", "keys"),
    [
        (write_dflash, {"sliding_window": 64, "use_sliding_window": True}),
        (write_eagle3, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        (write_eagle3, {"norm_output": True}),
    ],
)
def test_what_is_not_served_here_is_not_called_faulty(write, keys, target, tmp_path):
    folder = write(tmp_path / "drafter", target)
    changed(folder, **keys)
    report = examine(folder, target)
    assert [finding.check for finding in report.findings] == ["support"] and not report.has_errors


def test_other_forms_of_a_sound_drafter_are_sound_and_their_faults_are_found(target, tmp_path):
    source = write_eagle3(tmp_path / "source", target)
    export(source, tmp_path / "speculators", "speculators", target.folder, "some/model")
    report = examine(tmp_path / "speculators", target)
    assert report.findings == [] and report.facts["dialect"] == "speculators, written by paceline"
    changed(tmp_path / "speculators", norm_before_fc=True)
    assert [finding.check for finding in examine(tmp_path / "speculators", target).findings] == ["support"]
    changed(tmp_path / "speculators", norm_before_fc=False, draft_vocab_size=19)
    assert {finding.check for finding in examine(tmp_path / "speculators", target).findings} == {"d2t", "head rows"}
    changed(source, architectures=["Eagle3LlamaForCausalLM"])
    assert examine(source, target).findings == []


def test_heads_are_looked_at_too(target, tmp_path):
    save_heads(tiny_heads(), tmp_path / "drafter", about(target))
    report = examine(tmp_path / "drafter", target)
    assert report.findings == [] and report.facts["method"] == "parallel heads" and report.facts["heads"] == "4"
    reweighted(tmp_path / "drafter", fc__weight=torch.zeros_like)
    assert [finding.check for finding in examine(tmp_path / "drafter", target).findings] == ["all zeros"]


ERROR, WARNING = Severity.ERROR, Severity.WARNING
IDS = torch.arange(20) * 2
OWN = {"mask_token_id": 0, "target_layer_ids": [0, 2]}
ROTARY = "midlayer__self_attn__rotary_emb__inv_freq"
FAULTS = {
    "missing weights": (write_eagle3, ERROR, lambda f: reweighted(f, fc__weight=None)),
    "unexpected weights": (write_dflash, ERROR, lambda f: reweighted(f, extra__weight=torch.ones(3).bfloat16())),
    "misshapen weights": (write_specblock, ERROR, lambda f: reweighted(f, norm__weight=torch.ones(31).bfloat16())),
    "head rows": (write_eagle3, ERROR, lambda f: reweighted(f, lm_head__weight=lambda w: w[:19])),
    "RoPE": (write_dflash, WARNING, lambda f: changed(f, rope_theta=123.0)),
    "d2t": (write_eagle3, ERROR, lambda f: reweighted(f, d2t=IDS)),
    "t2d": (write_eagle3, ERROR, lambda f: reweighted(f, t2d=lambda w: w.roll(1))),
    "mask token": (write_dflash, WARNING, lambda f: changed(f, dflash_config=OWN | {"mask_token_id": 7})),
    "embedding": (write_eagle3, WARNING, lambda f: changed(f, tie_word_embeddings=True)),
    "dtype": (write_dflash, WARNING, lambda f: changed(f, dtype="float16")),
    "NaN or infinity": (write_specblock, ERROR, lambda f: reweighted(f, norm__weight=lambda w: w * torch.nan)),
    "all zeros": (write_eagle3, ERROR, lambda f: reweighted(f, fc__weight=torch.zeros_like)),
    "max positions": (write_dflash, WARNING, lambda f: changed(f, max_position_embeddings=128)),
    "tokenizer": (write_eagle3, ERROR, lambda f: spoken(f, tokenizer_sha256="0" * 16)),
    "chat template": (write_specblock, WARNING, lambda f: spoken(f, chat_template_sha256="0" * 16)),
    "target": (write_eagle3, ERROR, lambda f: changed(f, num_target_layers=5)),
    "config": (write_dflash, ERROR, lambda f: changed(f, num_key_value_heads=3)),
    "files": (write_dflash, ERROR, lambda f: (f / "model.safetensors").write_bytes(b"half of it")),
}  # fmt: skip


@pytest.mark.parametrize("check", FAULTS)
def test_a_planted_fault_is_found_by_its_name_and_nothing_else(check, target, tmp_path):
    write, severity, plant = FAULTS[check]
    folder = write(tmp_path / "drafter", target)
    plant(folder)
    findings = examine(folder, target).findings
    assert [(finding.check, finding.severity) for finding in findings] == [(check, severity)]
    for text in (findings[0].what, findings[0].meaning, findings[0].action):
        assert len(text) > 10


@pytest.mark.parametrize(
    ("check", "write", "plant", "said"),
    [
        ("RoPE", write_eagle3, lambda f: reweighted(f, **{ROTARY: torch.ones(4)}), "inv_freq"),
        ("RoPE", write_dflash, lambda f: changed(f, rope_interleaved=True), "neighbouring"),
        ("RoPE", write_dflash, lambda f: changed(f, is_neox_style=False), "neighbouring"),
        ("d2t", write_eagle3, lambda f: reweighted(f, d2t=torch.zeros(20, dtype=torch.int64), t2d=None), None),
        ("d2t", write_eagle3, lambda f: reweighted(f, d2t=torch.full((20,), 49)), "neither"),
        ("d2t", write_eagle3, lambda f: reweighted(f, d2t=(IDS - torch.arange(20))[:19]), "19 entries"),
        ("t2d", write_eagle3, lambda f: reweighted(f, t2d=torch.ones(49, dtype=torch.bool)), "shape"),
        ("mask token", write_dflash, lambda f: changed(f, dflash_config=OWN | {"mask_token_id": 50}), "50"),
        ("embedding", write_dflash, lambda f: changed(f, target_hidden_size=64), "beside a target of 64"),
        ("dtype", write_dflash, lambda f: reweighted(f, norm__weight=lambda w: w.float()), "several kinds"),
        ("dtype", write_dflash, lambda f: reweighted(f, norm__weight=lambda w: w.to(torch.int8)), "int8"),
        ("all zeros", write_dflash, lambda f: reweighted(f, norm__weight=torch.zeros_like), "norm.weight"),
    ],
)  # fmt: skip
def test_other_forms_of_the_same_faults(check, write, plant, said, target, tmp_path):
    folder = write(tmp_path / "drafter", target)
    plant(folder)
    found = [finding.what for finding in examine(folder, target).findings if finding.check == check]
    assert found == [] if said is None else said in found[0]


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden_size": 10**15},
        {"num_hidden_layers": 10**9},
        {"block_size": 10**9},
        {"layer_types": "full"},
        {"sliding_window": "x"},
        {METADATA: [1]},
    ],
)
def test_values_that_no_network_has_are_faults_and_nothing_is_built_of_them(keys, target, tmp_path):
    folder = write_dflash(tmp_path / "drafter", target)
    changed(folder, **keys)
    assert examine(folder, target).has_errors


def test_a_config_that_is_nested_without_end_is_a_sentence(target, tmp_path, capsys):
    folder = write_dflash(tmp_path / "drafter", target)
    (folder / "config.json").write_text("[" * 100_000)
    assert main(["doctor", str(folder)]) == 1
    assert "cannot be read as JSON" in capsys.readouterr().out


@pytest.mark.parametrize(("flag", "value"), [("--device", "nonsense"), ("--max-tokens", "0"), ("--limit", "0")])
def test_options_that_cannot_be_are_refused_although_nothing_is_measured(flag, value, target, tmp_path, capsys):
    folder = write_dflash(tmp_path / "drafter", target)
    assert main(["doctor", str(folder), "--no-measure", flag, value]) == 2
    assert capsys.readouterr().err.startswith("paceline: error: ")


def test_readings_that_cannot_be_told_apart_are_named():
    counts = {AS_STORED: [(5, 10)] * 8, NAMES["up"]: [(5, 10)] * 8, NAMES["down"]: [(2, 10)] * 8}
    assert Measured(counts).undecided == [NAMES["up"]]


def test_a_tokenizer_that_lies_beside_it_is_compared(target, tmp_path):
    folder = write_eagle3(tmp_path / "drafter", target)
    target.tokenizer.save_pretrained(folder)
    assert examine(folder, target).findings == []
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["vocab"] |= {"w1": words["model"]["vocab"]["w2"], "w2": words["model"]["vocab"]["w1"]}
    (folder / "tokenizer.json").write_text(json.dumps(words))
    assert [finding.check for finding in examine(folder, target).findings] == ["tokenizer"]


NAMES = {
    "stored": AS_STORED,
    "up": "from the layers one higher",
    "down": "from the layers one lower",
    "rope": TARGETS_ROPE,
    "plain": PLAIN_ROPE,
}


def judged(opened, **acceptance):
    """Findings where every one of eight answers has 10 rounds."""
    counts = {NAMES[key]: [(round(10 * (tau - 1)), 10)] * 8 for key, tau in acceptance.items()}
    return [(finding.check, finding.action) for finding in judge(opened, Measured(counts))]


def test_readings_that_accept_more_than_what_is_stored_are_findings(target, tmp_path):
    opened = examine(write_eagle3(tmp_path / "drafter", target), target).opened
    assert judged(opened, stored=2.0, up=2.0, down=1.5, rope=2.0) == []
    assert [check for check, _ in judged(opened, stored=1.2, rope=2.0, plain=1.5)] == ["RoPE"]
    found = judged(opened, stored=1.5, up=2.0, down=1.8)
    assert len(found) == 1 and found[0][0] == "layer ids" and "[1, 3]" in found[0][1]


def test_more_by_chance_is_no_finding(target, tmp_path):
    opened = examine(write_eagle3(tmp_path / "drafter", target), target).opened
    uneven = [(4, 10), (9, 10), (6, 10), (12, 10)] * 2
    counts = {AS_STORED: uneven, "from the layers one higher": [*uneven[1:], uneven[0]]}
    assert list(judge(opened, Measured(counts))) == []


def test_the_advice_counts_layers_as_the_file_does(target, tmp_path):
    source = write_eagle3(tmp_path / "source", target)
    export(source, tmp_path / "speculators", "speculators", target.folder, "some/model")
    for folder, key, layers in (
        (source, f"eagle_config.{TAPS}", [1, 3]),
        (tmp_path / "speculators", TAPS, [2, 4]),
        (write_dflash(tmp_path / "dflash", target), "dflash_config.target_layer_ids", [1, 3]),
    ):
        ((_, action),) = judged(examine(folder, target).opened, stored=1.5, up=2.0)
        assert action == f"Set {key} in its config.json to {layers}."


def test_the_command_prints_measures_and_says_by_its_exit_code(target, tmp_path, capsys):
    folder = write_dflash(tmp_path / "drafter", target)
    asked = ["doctor", str(folder), "--target", str(target.folder), "--limit", "2", "--max-tokens", "6"]
    assert main([*asked, "--json", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert "Nothing is wrong." in printed and re.search(
        r"acceptance +\d\.\d\d as stored, \d\.\d\d from the layers one higher", printed
    )
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["findings"] == [] and written["acceptance"].keys() == {AS_STORED, "from the layers one higher"}
    changed(folder, dtype="float16")
    assert main(asked) == 0 and main([*asked, "--strict"]) == 1
    assert "warning: dtype: config.json says float16" in capsys.readouterr().out
    reweighted(folder, fc__weight=None)
    assert main(asked) == 1
    printed = capsys.readouterr().out
    assert "error: missing weights: it lacks fc.weight" in printed and "it cannot be loaded as it is" in printed


def test_findings_are_not_lost_where_nothing_can_be_measured(target, tmp_path, capsys):
    folder = write_dflash(tmp_path / "drafter", target)
    changed(folder, dtype="float16", rope_theta=123.0)
    asked = ["doctor", str(folder), "--target", str(target.folder), "--limit", "2"]
    assert main([*asked, "--max-tokens", "1"]) == 0
    printed = capsys.readouterr().out
    assert "warning: RoPE" in printed and "no answer has two tokens" in printed
    assert main([*asked, "--max-tokens", "300"]) == 0
    assert "2 findings." in (printed := capsys.readouterr().out) and "Nothing was measured" in printed
    assert main([*asked, "--max-tokens", "4"]) == 0  # what is measured to be no better is no finding
    printed = capsys.readouterr().out
    assert "1 finding." in printed and "acceptance" in printed and "warning: RoPE" not in printed


def test_without_a_target_that_fits_the_files_alone_are_judged(target, tmp_path, capsys):
    folder = write_specblock(tmp_path / "drafter", target)
    assert main(["doctor", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "the embedded one does not fit" in printed and "Nothing was measured" in printed


def test_what_is_no_checkpoint_is_refused_in_a_sentence(target, tmp_path, capsys):
    with pytest.raises(CheckpointError, match="does not exist"):
        examine(tmp_path / "nowhere", target)
    assert main(["doctor", str(tmp_path)]) == 2
    (tmp_path / "config.json").write_text("{}")
    assert main(["doctor", str(tmp_path), "--target", str(target.folder)]) == 1
    assert "holds the architectures None" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTER_KINDS)
def test_the_drafters_that_come_with_us_are_sound(kind, capsys):
    assert main(["doctor", kind, "--strict", "--no-measure"]) == 0
    assert "Nothing is wrong." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 1])
def test_the_layers_of_a_trained_drafter_are_told_by_what_it_accepts(shift, tmp_path, capsys):
    moved = shutil.copytree(embedded_drafter("eagle3"), tmp_path / "moved")
    config = json.loads((moved / "config.json").read_text())
    for holder in (config, config["eagle_config"]):
        holder[TAPS] = [layer + shift for layer in holder[TAPS]]
    (moved / "config.json").write_text(json.dumps(config))
    assert main(["doctor", str(moved), "--threads", "2"]) == shift
    said = capsys.readouterr().out
    assert ("are accepted from the layers one lower" in said and "to [1, 14, 27]" in said) is bool(shift)
