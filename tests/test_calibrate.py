"""What a round costs here: measured, kept for the next start, and used by the policy of that name."""

import json
import math
from dataclasses import replace

import pytest

from paceline.calibrate import costs_of, costs_path, measure_costs
from paceline.cli import main
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.drafters.specblock import SpecBlockDrafter
from paceline.loading import load
from paceline.policies.cost_aware import CostAwarePolicy
from paceline.policies.costs import Costs
from paceline.tree import GROWTHS
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_folder import write_tiny_folder
from tiny_models import tiny_target
from tiny_specblock import tiny_specblock

PAIR = {"target_digest": "aaaa", "drafter_digest": "bbbb"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("paceline.policies.costs.MOST_UNSTEADY", math.inf)  # passes of a tiny model are never steady
    return tmp_path


def test_every_part_of_a_round_is_measured():
    target = tiny_target("llama")
    told = []
    costs = measure_costs(target, PromptLookupDrafter(), 8, told.append)
    assert costs.verify[0].sizes[0] == 1 and costs.verify[0].sizes[-1] >= 16  # twice the widest tree: for batches
    assert all(seconds > 0 for curve in costs.verify for seconds in curve.seconds)
    assert costs.draft.sizes == (2, 4, 8, 10, 16) and costs.other > 0
    assert all(context < target.info.max_context for context in costs.contexts) and told


@pytest.mark.parametrize("make", [tiny_network, tiny_specblock])
def test_draft_networks_are_measured_on_texts_that_go_on(make):
    target = tiny_target("llama", vocab_size=50, num_hidden_layers=4)
    network = make()
    network.attach(target.embedding.float(), target.head.float())
    network.to(target.info.dtype)
    drafter = DFlashDrafter(network, GROWTHS["chain"]) if make is tiny_network else SpecBlockDrafter(network)
    costs = measure_costs(target, drafter, 4)
    assert len(costs.draft.sizes) >= 4 and all(seconds > 0 for seconds in costs.draft.seconds)


def test_costs_are_kept_and_a_damaged_file_is_measured_again(monkeypatch):
    target, drafter = tiny_target("llama"), PromptLookupDrafter()
    first = costs_of(target, drafter, 8, PAIR)
    path = costs_path(target, drafter, 8, PAIR)
    assert Costs.from_json(json.loads(path.read_text())) == first
    with monkeypatch.context() as patch:
        patch.setattr("paceline.calibrate.measure_costs", lambda *args: pytest.fail("measured again"))
        assert costs_of(target, drafter, 8, PAIR) == first
    path.write_text(path.read_text()[:40])
    costs_of(target, drafter, 8, PAIR)
    Costs.from_json(json.loads(path.read_text()))


def test_a_machine_that_is_too_slow_is_measured_at_few_sizes_and_one_context(monkeypatch):
    monkeypatch.setattr("paceline.calibrate._PATIENCE_S", 0.0)
    costs = measure_costs(tiny_target("llama"), PromptLookupDrafter(), 8)
    assert len(costs.contexts) == len(costs.verify) == 1
    assert costs.verify[0].sizes == (1, 2) and costs.draft.sizes == (2, 4)
    assert not costs.unsteadiness < math.inf  # nothing was measured twice


def test_costs_of_a_busy_machine_are_used_but_not_kept(monkeypatch):
    target, drafter = tiny_target("llama"), PromptLookupDrafter()
    monkeypatch.setattr("paceline.policies.costs.MOST_UNSTEADY", 1.6)
    busy = replace(measure_costs(target, drafter, 4), unsteadiness=3.0)
    monkeypatch.setattr("paceline.calibrate.measure_costs", lambda *args: busy)
    with pytest.warns(UserWarning, match=r"took 3\.0 times as long"):
        assert costs_of(target, drafter, 4, PAIR) == busy
    assert not costs_path(target, drafter, 4, PAIR).exists()


def test_costs_of_another_pair_or_budget_lie_elsewhere():
    target, drafter = tiny_target("llama"), PromptLookupDrafter()
    places = {costs_path(target, drafter, 8, PAIR), costs_path(target, drafter, 9, PAIR)}
    places |= {costs_path(target, drafter, 8, {**PAIR, name: "other"}) for name in PAIR}
    assert len(places) == 4


def test_a_home_that_cannot_be_written_costs_only_the_keeping(home, monkeypatch):
    (home / "file").write_text("in the way")
    monkeypatch.setenv("HOME", str(home / "file"))
    assert costs_of(tiny_target("llama"), PromptLookupDrafter(), 4, PAIR).other > 0


def test_the_policy_by_name_gives_the_text_of_no_policy(folder, home):
    plain = load(str(folder), "none").generate("w1 w2 w3 w1 w2", GenerationSettings(max_tokens=20))
    model = load(str(folder), "prompt_lookup", policy="cost_aware", tree_budget=6)
    assert isinstance(model.parts.policy, CostAwarePolicy) and model.parts.policy.max_budget == 6
    assert model.generate("w1 w2 w3 w1 w2", GenerationSettings(max_tokens=20)).tokens == plain.tokens
    assert list((home / ".cache" / "paceline" / "costs").glob("*.json"))


def test_the_command_keeps_prints_and_writes_the_costs(folder, home, capsys):
    argv = ["--target", str(folder), "--tree-budget", "4", "--json", str(home / "costs.json")]
    assert main(["calibrate", *argv]) == 0
    printed = capsys.readouterr().out
    assert "rows" in printed and "block size" in printed and "kept in" in printed
    Costs.from_json(json.loads((home / "costs.json").read_text()))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--policy", "cost_aware"], "--policy came"),
        (["--block-size", "4"], "--block-size came"),
        (["--drafter", "none"], "nothing to weigh"),
        (["--json", "no/such/folder/out.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(changes, sentence, folder, capsys):
    assert main(["calibrate", "--target", str(folder), *changes]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


@pytest.mark.slow
def test_verify_puts_the_policy_to_the_proof(folder, capsys):
    argv = ["--target", str(folder), "--drafter", "prompt_lookup", "--max-tokens", "6", "--limit", "2"]
    assert main(["verify", *argv, "--policy", "cost_aware", "--tree-budget", "4"]) == 0
    assert "prompt_lookup, cost_aware" in " ".join(capsys.readouterr().out.split())
