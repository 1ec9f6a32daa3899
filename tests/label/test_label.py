"""Labels: what each block size did, kept prompt by prompt, complete after any kill."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from paceline.cli import main
from paceline.errors import CheckpointError, InputError, PromptTooLongError
from paceline.label.config import LabelConfig
from paceline.label.run import label_prompts
from paceline.label.worker import Labeller
from paceline.labels import label_path, read_label, read_labels
from paceline.loading import load
from paceline.prompts import Prompt
from paceline.scale import map_here, map_in_processes, map_on_ray
from paceline.types import GenerationSettings
from tiny_folder import write_tiny_folder

PROMPTS = [
    Prompt("tiny", str(i), " ".join(f"w{(3 * i + j) % 40}" for j in range(6)) + " w1 w2 w1 w2") for i in range(5)
]
COUNTS = ("block_sizes", "rounds", "accepted", "tokens", "logits", "features")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture
def config(folder):
    return LabelConfig({"target": str(folder), "drafter": "prompt_lookup"}, block_sizes=(3, 6, 2), max_tokens=12)


def label(out, config, prompts=PROMPTS, mapper=map_here, reports=None):
    make = functools.partial(Labeller, config)
    reports = reports if reports is not None else []
    settings = {"block_sizes": list(config.block_sizes), "max_tokens": config.max_tokens}
    return label_prompts(out, prompts, settings, lambda items: mapper(make, items), lambda *r: reports.append(r))


def counts(out):
    return {f.prompt_id: {name: getattr(f, name).tolist() for name in COUNTS} for f in read_labels(out)}


def test_a_label_holds_what_decoding_at_each_size_gives(folder, config, tmp_path):
    assert label(tmp_path / "out", config) == len(PROMPTS)
    model = load(str(folder), "prompt_lookup")
    assert model.drafter.default_tree_budget == 7  # for every size the same: the widest chain's would be 5
    for prompt in PROMPTS:
        found = read_label(label_path(tmp_path / "out", prompt))
        assert (found.prompt_id, found.set_name) == (prompt.id, "tiny")
        assert found.block_sizes.tolist() == [2, 3, 6]
        for index, size in enumerate((2, 3, 6)):
            settings = GenerationSettings(max_tokens=12, block_size=size, tree_budget=7)
            statistics = model.generate(prompt.text, settings).statistics
            assert found.rounds[index] == statistics.rounds and found.accepted[index] == statistics.accepted
            assert found.acceptance_length[index] == pytest.approx(statistics.acceptance_length)
        tokens = model.encode(prompt.text)
        logits = model.target.prefill(model.target.new_cache(1, len(tokens)), 0, tokens).logits[0, -1]
        assert torch.equal(found.logits, logits.float())
        assert (found.tokens_per_s > 0).all() and (found.verify_s > 0).all()
        assert (found.draft_s + found.verify_s <= found.decode_s + 1e-6).all()


def test_the_sizes_are_those_around_the_drafters_own_where_none_are_named():
    assert LabelConfig().sizes(8) == (6, 7, 8, 9, 10)
    assert LabelConfig(reach=1).sizes(2) == (2, 3)
    assert LabelConfig(block_sizes=(9, 4)).sizes(8) == (4, 9)


def test_what_is_there_is_not_done_again_and_other_settings_are_refused(config, tmp_path):
    out = tmp_path / "out"
    assert label(out, config, PROMPTS[:2]) == 2
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    reports = []
    assert label(out, config, [*PROMPTS[:4], PROMPTS[0]], reports=reports) == 2
    assert reports == [(2, 4), (3, 4), (4, 4)]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with pytest.raises(InputError, match="begun with max_tokens = 12 but 9"):
        label(out, LabelConfig(config.load, config.block_sizes, max_tokens=9))


@pytest.mark.slow
def test_processes_give_the_labels_of_one(config, tmp_path):
    label(tmp_path / "one", config)
    label(tmp_path / "two", config, mapper=functools.partial(map_in_processes, num_workers=2))
    assert counts(tmp_path / "one") == counts(tmp_path / "two")


@pytest.mark.slow
def test_ray_workers_give_the_labels_of_one_process(config, tmp_path):
    pytest.importorskip("ray")
    label(tmp_path / "one", config)
    label(tmp_path / "two", config, mapper=functools.partial(map_on_ray, num_workers=2))
    assert counts(tmp_path / "one") == counts(tmp_path / "two")


KILLED = """
import functools, sys, time
from pathlib import Path
from paceline.cli import main
import paceline.label.worker as worker
call = worker.Labeller.__call__
def slow(self, prompt):
    with Path(sys.argv[1]).open("a") as log: log.write(prompt.id + chr(10))
    found = call(self, prompt)
    time.sleep(0.3)
    return found
worker.Labeller.__call__ = slow
sys.exit(main(sys.argv[2:]))
"""


def command(folder, prompts, out):
    common = ["--max-tokens", "8", "--block-sizes", "2", "4"]
    return ["label", "--target", str(folder), "--prompts", str(prompts), "--out", str(out), *common]


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "tiny.jsonl"
    path.write_text("".join(f'{{"id": "{p.id}", "turns": ["{p.text}"]}}\n' for p in PROMPTS))
    return path


@pytest.mark.slow
def test_killed_anywhere_and_run_again_nothing_is_lost_and_nothing_done_twice(folder, prompt_file, tmp_path, capsys):
    out, log = tmp_path / "out", tmp_path / "log"
    argv = [sys.executable, "-c", KILLED, str(log), *command(folder, prompt_file, out)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(out.glob("*.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path.name for path in out.glob("*.safetensors")}
    assert 2 <= len(kept) < len(PROMPTS)
    begun = Path(log).read_text().split()
    assert main(command(folder, prompt_file, out)) == 0
    labels = read_labels(out)
    assert sorted(found.prompt_id for found in labels) == [p.id for p in PROMPTS]
    assert f"{len(PROMPTS) - len(kept)} prompts newly labelled" in capsys.readouterr().out
    assert len(begun) <= len(kept) + 1  # at most the one in hand was begun again
    assert main(command(folder, prompt_file, out)) == 0
    assert "a label for every prompt already" in capsys.readouterr().out


def test_what_fails_to_load_makes_no_beginning(folder, config, tmp_path):
    bad = LabelConfig({**config.load, "device": "cuda:99"}, config.block_sizes, max_tokens=12)
    with pytest.raises(InputError, match="cuda:99"):
        label(tmp_path / "out", bad)
    assert label(tmp_path / "out", config) == len(PROMPTS)


def test_a_prompt_that_is_too_long_is_said_after_the_others_are_labelled(config, tmp_path):
    endless = Prompt("tiny", "endless", "w1 " * 400)
    with pytest.raises(PromptTooLongError, match="'endless'"):
        label(tmp_path / "out", config, [PROMPTS[0], endless, PROMPTS[1]])
    assert len(read_labels(tmp_path / "out")) == 2


def test_labels_of_models_loaded_otherwise_are_kept_apart(config, tmp_path):
    label(tmp_path / "out", config, PROMPTS[:1])
    other = LabelConfig({**config.load, "dtype": "bfloat16"}, config.block_sizes, max_tokens=12)
    with pytest.raises(CheckpointError, match="keep them apart"):
        label(tmp_path / "out", other)
    assert len(read_labels(tmp_path / "out")) == 1  # what is there stays usable


def test_labels_without_their_settings_are_not_gone_on_with(config, tmp_path):
    label(tmp_path / "out", config, PROMPTS[:1])
    (tmp_path / "out" / "settings.json").unlink()
    with pytest.raises(InputError, match="how they were made is unknown"):
        label(tmp_path / "out", config)


def test_a_damaged_label_is_refused_by_name(config, tmp_path):
    out = tmp_path / "out"
    label(out, config, PROMPTS[:2])
    path = label_path(out, PROMPTS[1])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=rf"{path.name} cannot be read .* label again"):
        label(out, config)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--block-sizes", "1", "4"], "block size 1 came"),
        (["--block-sizes", "4", "4"], "named twice"),
        (["--block-sizes", "4"], "one block size came"),
        (["--reach", "0"], "reach is 0"),
        (["--reach", "1000000000"], "reach is 1000000000"),
        (["--gpus", "nan"], "gpus is nan"),
        (["--workers", "0"], "workers is 0"),
        (["--gpus", "1"], "gpus is 1.0"),
        (["--block-size", "4"], "name them with --block-sizes"),
        (["--policy", "fixed:4"], "labels compare several"),
        (["--drafter", "none"], "nothing to label"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--prompts", "nowhere.jsonl"], "cannot be read"),
    ],
)
def test_what_cannot_be_labelled_is_refused_in_one_sentence(changes, sentence, tmp_path, capsys):
    assert main(["label", "--out", str(tmp_path / "out"), *changes]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()
