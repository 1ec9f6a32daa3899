"""Chances against shares accepted: right where the truth is known, and the text is what it was."""

import json
import math

import numpy as np
import pytest
import torch

from paceline.bench.reliability import KINDS, WatchedPolicy, bins, summary
from paceline.cli import main
from paceline.decode import Parts
from paceline.engine import Engine
from paceline.plain import plain_decode
from paceline.policies.base import DraftView, PromptView, RoundView, SequenceView
from paceline.policies.fixed import FixedPolicy
from paceline.tree import DraftTree
from paceline.types import GenerationSettings, Statistics
from tiny_folder import write_tiny_folder
from tiny_models import RandomTreeDrafter, tiny_target


def test_bins_hold_each_node_once_and_say_what_was_accepted():
    chances = np.array([0.005, 0.15, 0.15, 0.95, 1.0])
    accepted = np.array([False, True, False, True, True])
    found = bins(chances, accepted)
    assert [(b.low, b.nodes, b.accepted) for b in found] == [(0.0, 1, 0.0), (0.1, 2, 0.5), (0.9, 2, 1.0)]
    assert found[-1].said == pytest.approx(0.975) and found[-1].high == 1.0
    assert bins(np.zeros(0), np.zeros(0, bool)) == []


def test_calibration_mends_a_drafter_that_is_too_sure_and_that_is_seen():
    rng = np.random.default_rng(0)
    watched = WatchedPolicy(FixedPolicy(3, 2))
    tree = DraftTree(torch.arange(2), torch.arange(2), torch.tensor([math.log(0.9), math.log(0.81)]))
    state = watched.begin(PromptView(GenerationSettings(), torch.zeros(4), None))
    view = SequenceView(GenerationSettings(), Statistics(), state)
    for _ in range(400):
        first = rng.random() < 0.4
        path = [1] * first + [2] * (first and rng.random() < 0.4)
        watched.learn(RoundView([DraftView(view, 10, watched.choose(view), tree)], [path], 0.0, 0.0, 0.0))
    rows = {row["chances"]: row for row in summary(watched)}
    assert list(rows) == list(KINDS) and rows["drafter"]["rounds"] == 400 and rows["drafter"]["nodes"] == 800
    assert rows["drafter"]["expected"] == pytest.approx(1.71) and rows["drafter"]["kept"] < 0.7
    assert rows["calibrated"]["expected"] == pytest.approx(rows["calibrated"]["kept"], abs=0.2)  # while it learns
    assert rows["calibrated"]["log_loss"] < rows["drafter"]["log_loss"]


def test_watching_changes_no_text():
    target, settings = tiny_target("llama"), GenerationSettings(max_tokens=12)
    watched = WatchedPolicy(FixedPolicy(5, 12))
    engine = Engine(Parts(target, RandomTreeDrafter(40), watched))
    request = engine.submit([1, 2, 3], settings)
    engine.run()
    assert request.tokens == plain_decode(target, [1, 2, 3], settings)
    assert watched.accepted().sum() == request.statistics.accepted > 0


def test_the_command_prints_and_writes_what_it_found(tmp_path, capsys):
    folder = write_tiny_folder(tmp_path / "target")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"turns": ["w1 w2 w3 w1 w2"]}) + "\n")
    argv = ["--target", str(folder), "--prompts", str(prompts), "--max-tokens", "24", "--out", str(tmp_path / "out")]
    assert main(["policy", "reliability", *argv]) == 0
    printed = capsys.readouterr().out
    assert "log loss" in printed and "calibrated" in printed
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".png", ".svg", ".json"}
    assert main(["policy", "reliability", *argv, "--policy", "cost_aware"]) == 2
    assert "name fixed:SIZE:NODES" in capsys.readouterr().err
    assert main(["policy", "reliability", *argv, "--drafter", "none"]) == 2
    assert "no chances without one" in capsys.readouterr().err
