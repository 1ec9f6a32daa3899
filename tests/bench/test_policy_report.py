"""The report on block sizes: right on a table worked out by hand, honest about what was chosen afterwards."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from paceline.bench.acceptance_tables import joined, read_tables
from paceline.bench.policy_report import BEST_FIXED, ORACLE, histogram, report_rows
from paceline.checkpoints.policy import save_policy
from paceline.cli import main
from paceline.errors import CheckpointError, InputError
from paceline.models.policy_head import PolicyHead, PolicyHeadConfig

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "blockpilot_acceptance.json"
TABLE = {
    "datasets": {
        "code": {"acceptance_length": {"8": [4, 4, 2, 2], "16": [5, 3, 3, 3], "4": [1, 1, 1, 1]}},
        "prose": {"acceptance_length": {"8": [2, 2, 2, 2], "16": [1, 1, 1, 3], "4": [1, 1, 1, 1]}},
    }
}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    return path


def rows(table, **options):
    return {row.method: row for row in report_rows(table, "tau", **options)}


def test_means_gains_and_regrets_are_those_worked_out_by_hand(table):
    code, prose = read_tables(table, (8, 16))
    found = rows(code)
    assert list(found) == ["fixed 8", "fixed 16", BEST_FIXED, ORACLE]
    assert (found["fixed 8"].mean, found["fixed 16"].mean, found[ORACLE].mean) == (3.0, 3.5, 3.75)
    # rows 1 and 3 of 8: 4, 2, of 16: 3, 3, a tie that goes to 8, which rows 0 and 2 are judged by: 4, 2;
    # rows 0 and 2 of 8: 4, 2, of 16: 5, 3: so 16 for rows 1 and 3: 3, 3
    assert found[BEST_FIXED].mean == 3.0
    assert found[ORACLE].gain == 3.75 / 3.0 and found[ORACLE].regret == 0 and found["fixed 8"].regret == 0.75
    assert found["fixed 16"].hits == 3 and found[ORACLE].hits == 4
    assert found[ORACLE].gain_low <= found[ORACLE].gain <= found[ORACLE].gain_high
    assert histogram(code, "tau") == {8: 1, 16: 3} and histogram(prose, "tau") == {8: 3, 16: 1}
    assert rows(joined([code, prose]))[ORACLE].mean == (3.75 + 2.25) / 2


def test_with_training_prompts_the_best_fixed_size_is_theirs(table):
    code, _ = read_tables(table, (8, 16))
    assert rows(code, training=np.array([[3.0, 2.0]]))[BEST_FIXED].mean == 3.0
    assert rows(code, training=np.array([[2.0, 3.0]]))[BEST_FIXED].mean == 3.5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not of the form"),
        ("[]", "is not of the form"),
        ('{"datasets": {}}', "is not of the form"),
        ('{"datasets": {"a": {"acceptance_length": {"8": [2], "16": [2, 3]}}}}', "is not of the form"),
        ('{"datasets": {"a": {"acceptance_length": {"8": [0.5]}}}}', "below 1 or none"),
        ('{"datasets": {"a": {"acceptance_length": {"8": [NaN]}}}}', "below 1 or none"),
        ('{"datasets": {"a": {"acceptance_length": {"8": [], "16": []}}}}', "has no prompts"),
        ('{"datasets": {"a": {"acceptance_length": {"8": [2]}, "published_selection": [9]}}}', r"has block size 9"),
    ],
)
def test_tables_of_another_form_are_refused_in_one_sentence(tmp_path, content, sentence):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_tables(tmp_path / "t.json", ())
    assert "\n" not in str(caught.value)


def test_sizes_and_policies_that_the_table_cannot_serve_are_refused(table):
    with pytest.raises(InputError, match="no block size 5"):
        read_tables(table, (5, 8))
    with pytest.raises(InputError, match="has none; give a folder of labels"):
        read_tables(table, (), lambda label: 8)
    with pytest.raises(InputError, match="cannot be read"):
        read_tables(table.with_name("nowhere.json"), ())
    with pytest.raises(InputError, match="which has no tokens_per_s"):
        read_tables(table, (8, 16))[0].values("tokens_per_s")
    with pytest.raises(CheckpointError, match="holds no labels"):
        read_tables(table.parent, ())


def test_the_candidates_of_a_published_selection_are_the_tables_sizes_within_it(tmp_path):
    columns = {"4": [2, 2], "8": [3, 1], "16": [1, 3], "32": [1, 1]}
    both = {"a": {"acceptance_length": columns, "published_selection": [4, 16]}, "b": {"acceptance_length": columns}}
    (tmp_path / "t.json").write_text(json.dumps({"datasets": both}))
    with_one, _ = read_tables(tmp_path / "t.json", (4, 8, 16))
    assert with_one.block_sizes == (4, 8, 16) and with_one.selections["published"].tolist() == [0, 2]
    assert not joined(read_tables(tmp_path / "t.json", (4, 8, 16))).selections
    del both["b"]
    (tmp_path / "t.json").write_text(json.dumps({"datasets": both}))
    assert read_tables(tmp_path / "t.json", ())[0].block_sizes == (4, 8, 16)


def test_the_command_prints_the_table_and_writes_figures_and_json(table, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    assert main(["policy", "report", str(table), "--block-sizes", "8", "16", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "3.750" in printed and "published" not in printed
    kinds = [f"{name}_tau.{kind}" for name in ("best_size", "by_block_size") for kind in ("png", "svg")]
    assert sorted(path.name for path in out.iterdir()) == sorted([*kinds, "report.json"])
    assert all(path.stat().st_size > 2000 for path in out.iterdir() if path.suffix != ".json")
    found = {(r["set_name"], r["method"]): r for r in json.loads((out / "report.json").read_text())["rows"]}
    assert math.isclose(found["all", ORACLE]["mean"], 3.0)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published table is not part of the project")
def test_the_published_table_gives_the_published_figures(capsys):
    assert main(["policy", "report", str(PUBLISHED)]) == 0
    out = capsys.readouterr().out
    for name, fixed, oracle in (("gsm8k", "6.509", "6.735"), ("math500", "8.200", "8.532")):
        lines = [line.split() for line in out.splitlines() if line.startswith(name)]
        assert [words[5] for words in lines if words[2:4] == ["fixed", "16"]] == [fixed]
        assert [words[4] for words in lines if words[2] == "oracle"] == [oracle]
    assert "equals the oracle on 64 of 64 prompts" in out


def test_a_network_that_predicts_something_else_is_refused(table, tmp_path, capsys):
    shape = PolicyHeadConfig(num_inputs=4, block_sizes=(8, 16), width=4, predicts="accepted")
    save_policy(PolicyHead(shape), tmp_path / "joint", {"target_digest": "aaaa", "drafter_digest": "bbbb"})
    assert main(["policy", "report", str(table), "--policy", str(tmp_path / "joint")]) == 2
    assert "for the joint policy, but a report judges policies that choose a block size" in capsys.readouterr().err
