"""The report: numbers worked out by hand, tables in three formats, figures where there is something to draw."""

import csv
import io
import re

import pytest

from made_results import FACTS, HF, PLAIN, method, sized, write_run
from paceline.bench.report.cells import ALL, cells
from paceline.bench.report.figures import FIGURES
from paceline.bench.report.frame import frames
from paceline.bench.report.gathered import gather
from paceline.bench.report.readme import section, with_results
from paceline.bench.report.regret import plan_regrets
from paceline.bench.report.tables import by_set, comma_separated, latex, markdown, overall, titles
from paceline.bench.report.write import write_report
from paceline.cli import main
from paceline.errors import CheckpointError, InputError

DFLASH = method("dflash", 4.0, 3, block_size=8, tree_budget=7)
SWEPT = [sized(4, 4, 5.0, 2), sized(4, 8, 4.0, 3), sized(8, 4, 4.0, 3), sized(8, 8, 2.0, 5)]


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run.jsonl", [PLAIN, HF, DFLASH, *SWEPT], apart=[("dflash", 1)], judged=True)


def test_a_cell_says_what_the_answers_come_to(run):
    found = {(cell.method, cell.set_name): cell for cell in cells(gather([run]))}
    dflash = found["dflash", ALL]
    assert (dflash.speedup, dflash.speedup_low, dflash.speedup_high) == (2.0, 2.0, 2.0)
    assert dflash.tau == 1.75 and dflash.nodes_per_round == 4.0  # 3 accepted in 4 rounds
    assert dflash.tokens_per_s == pytest.approx(32 / 40)
    assert dflash.draft_share == pytest.approx(2 / 7)
    assert (dflash.answers, dflash.same_text, dflash.near_ties) == (4, 3, 1)
    assert (dflash.judged, dflash.right, dflash.hit_limit) == (4, 2, 1.0)
    assert found["dflash", "gsm8k"].answers == 2 and found["dflash", "gsm8k"].same_text == 2
    assert found["hf", ALL].speedup == pytest.approx(0.8) and found["hf", ALL].tau is None


def test_speedups_are_over_the_same_runs_plain_decoding(tmp_path):
    slow = method("plain", 80.0, 0)
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, DFLASH]),
        write_run(tmp_path / "b.jsonl", [slow, method("ddtree", 10.0, 3)], facts={**FACTS, "threads": 1}),
    ]
    gathered = gather(paths)
    found = {cell.method: cell for cell in cells(gathered) if cell.set_name == ALL}
    assert (found["dflash"].speedup, found["ddtree"].speedup) == (2.0, 8.0)
    assert any("differ in threads" in warning for warning in gathered.warnings)


def test_a_method_of_two_runs_is_told_apart_by_their_files(tmp_path):
    paths = [write_run(tmp_path / f"{name}.jsonl", [PLAIN, DFLASH]) for name in ("old", "new")]
    assert [m.name for m in gather(paths).methods] == ["plain", "dflash [old]", "dflash [new]"]


@pytest.mark.parametrize(
    ("name", "value"), [("dtype", "bfloat16"), ("grammar", "regex: a+"), ("target_digest", "b"),
                        ("chat_template_sha256", "u"), ("thinking_mode", "thinking")]
)  # fmt: skip
def test_runs_that_do_not_compare_are_refused_with_the_reason(tmp_path, name, value, capsys):
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, DFLASH]),
        write_run(tmp_path / "b.jsonl", [PLAIN, DFLASH], facts={**FACTS, name: value}),
    ]
    assert main(["report", *map(str, paths), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert f"differ in {name} ({FACTS.get(name)} and {value})" in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_no_results_and_the_same_twice_are_refused(run, tmp_path):
    with pytest.raises(InputError, match="no results came"):
        gather([])
    with pytest.raises(InputError, match="named twice"):
        gather([run, run])
    with pytest.raises(InputError, match="no measurement yet"):
        gather([write_run(tmp_path / "empty.jsonl", [PLAIN], num_prompts=0)])


def test_tables_have_a_row_a_method_and_two_columns_a_set(run):
    found = [cell for cell in cells(gather([run])) if cell.method in ("plain", "dflash")]
    head, rows = by_set(found)
    assert head == ["method", "gsm8k, speed-up", "gsm8k, tau", "humaneval, speed-up", "humaneval, tau",
                    "all prompts, speed-up", "all prompts, tau"]  # fmt: skip
    assert rows[1] == ["dflash", *["2.00x", "1.75"] * 3]
    head, (_, row) = overall(found)
    assert dict(zip(head, row, strict=True)) == {
        "method": "dflash", "tokens/s": "0.8", "speed-up": "2.00x", "95% interval": "2.00-2.00", "tau": "1.75",
        "nodes a round": "4.0", "drafting": "29%", "same text": "3/4; 1 part at a near-tie", "cut at the limit": "100%",
        "repeated 4-grams": "0%", "right": "2/4",
    }  # fmt: skip


def test_tables_come_as_markdown_latex_and_csv(run):
    found = cells(gather([run]))
    grid = (["method", "100%"], [["a_b", "1 & 2"]])
    assert markdown(grid) == "| method | 100% |\n| --- | --- |\n| `a_b` | 1 & 2 |\n"
    text = latex(grid, "of $5")
    assert r"method & 100\% \\" in text and r"a\_b & 1 \& 2 \\" in text and r"\caption{of \$5}" in text
    assert text.count("{tabular}") == 2
    rows = list(csv.DictReader(io.StringIO(comma_separated(found))))
    assert len(rows) == len(found) == 7 * 3
    assert {row["method"]: row["speedup"] for row in rows if row["set_name"] == ALL}["dflash"] == "2.0"


def test_every_temperature_has_tables_of_its_own(tmp_path):
    path = write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH], temperatures=(0.0, 1.0))
    found = cells(gather([path]))
    assert list(titles(found).values()) == ["T = 0", "T = 1"]
    written = {p.name for p in write_report(gather([path]), tmp_path / "out")[0]}
    assert {"by_set_1.md", "by_set_2.tex", "overall_1.tex", "accepted_lengths_2.png", "index.html"} <= written


def test_a_plan_is_what_tells_methods_of_a_family_apart():
    assert sized(4, 8, 1.0, 1)[0].plan == "8 nodes, block 4"
    assert method("mixture+joint:runs/lr=3", 1.0, policy="joint:runs/lr=3")[0].plan == "joint:runs/lr=3"
    assert DFLASH[0].plan == ""


def test_files_per_prompt_set_make_one_row(tmp_path):
    paths = [write_run(tmp_path / f"{i}.jsonl", [PLAIN, DFLASH], prompts=prompts) for i, prompts in
             enumerate(([0, 2], [1, 3]))]  # fmt: skip
    gathered = gather(paths)
    assert [m.name for m in gathered.methods] == ["plain", "dflash"]
    assert {cell.answers for cell in cells(gathered) if cell.set_name == ALL} == {4}
    assert gathered.warnings == ()


def test_methods_on_different_prompts_are_said_to_be(tmp_path):
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, DFLASH], prompts=[0, 1]),
        write_run(tmp_path / "b.jsonl", [PLAIN, method("ddtree", 3.0, 3)], prompts=[2, 3]),
    ]
    assert any("not every method" in warning.lower() for warning in gather(paths).warnings)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    paths = [write_run(tmp_path / name / "run.jsonl", [PLAIN, DFLASH]) for name in "ab"]
    assert [m.name for m in gather(paths).methods] == ["plain", *(f"dflash [{path}]" for path in paths)]


def drawn(path):
    gathered = gather([path])
    (frame,) = frames(gathered, titles(cells(gathered)))
    return {name: figure for name, draw in FIGURES.items() if (figure := draw(frame)) is not None}


def test_a_sweep_of_both_sizes_draws_every_figure(run):
    figures = drawn(run)
    assert set(figures) == set(FIGURES)
    speed, length = figures["by_budget"].axes
    assert [line.get_label() for line in length.lines] == ["block size 4", "block size 8"]
    assert [list(line.get_ydata()) for line in length.lines] == [[1.4, 1.75], [1.75, 3.5]]
    assert speed.get_ylabel() == "speed-up over plain" and speed.get_title() == "ddtree"
    (panel,) = figures["by_block_size"].axes
    assert panel.get_title() == "ddtree, 8 nodes, 4 prompts"
    heights = [patch.get_height() for patch in figures["accepted_lengths"].axes[1].patches]
    assert heights == pytest.approx([0.0, 0.0, 100.0]) or sum(heights) == pytest.approx(100.0)


def test_without_a_sweep_only_what_there_is_is_drawn(tmp_path):
    figures = drawn(write_run(tmp_path / "run.jsonl", [PLAIN, HF, DFLASH]))
    assert set(figures) == {"accepted_lengths", "by_position", "stage_times"}
    assert drawn(write_run(tmp_path / "hf.jsonl", [HF])) == {}


def test_regret_is_what_a_plan_lacks_to_the_fastest_of_each_prompt(run):
    gathered = gather([run])
    (frame,) = frames(gathered, titles(cells(gathered)))
    rows = plan_regrets(frame, frame.families()["ddtree"])
    assert rows[0].label == "8 nodes, block 8" and rows[0].loss == 0.0
    assert rows[-1].label == "4 nodes, block 4" and rows[-1].loss == pytest.approx(0.6)  # 2 seconds against 5
    assert plan_regrets(frame, frame.families()["dflash"]) == []


def test_the_report_is_one_command_and_its_page_needs_nothing_else(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["report", str(run), "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert all((tmp_path / line).exists() for line in said if "note:" not in line)
    page = (out / "index.html").read_text()
    assert page.count("<svg") == len(FIGURES) and "a processor" in page and "dflash" in page
    assert not re.search(r"(src|href)=[\"']?(https?:|//|[a-z_]+\.(png|svg|css|js))", page.replace('href="#', ""))
    (out / "regret_3.svg").write_text("of an earlier report")
    (out / "mine.txt").write_text("mine")
    assert main(["report", str(run), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {(tmp_path / line).name for line in said} | {"mine.txt"}


def test_a_report_that_is_broken_off_leaves_the_earlier_one(run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_report(gather([run]), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr("paceline.bench.report.write.page", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_report(gather([write_run(tmp_path / "other.jsonl", [PLAIN, DFLASH])]), out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_plain_baseline_slower_than_hugging_face_is_said_of_its_own_run(tmp_path, capsys):
    fast = write_run(tmp_path / "fast.jsonl", [method("plain", 1.0, 0), DFLASH], temperatures=(1.0,))
    path = write_run(tmp_path / "run.jsonl", [PLAIN, method("hf", 4.0)])
    assert main(["report", str(fast), str(path), "--out", str(tmp_path / "out")]) == 0
    assert "flatter here" in capsys.readouterr().out
    assert "speed-ups over plain flatter here" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(("dtype", "said"), [("float32", True), ("bfloat16", False)])
def test_drafted_answers_must_be_right_as_often_as_plain_ones_in_float32(tmp_path, dtype, said):
    facts = {**FACTS, "dtype": dtype}
    path = write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH], facts=facts, judged=True, wrong=("dflash",))
    write_report(gather([path]), tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text()
    assert ("dflash is right 0 times of 4 and plain decoding 2 of 4" in text) is said


def test_an_unfinished_run_is_reported_as_such(tmp_path):
    path = write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + '{"number": 3, "answ')
    assert gather([path]).warnings == ("run.jsonl is not complete: 1 prompts have not been measured.",)


def test_a_documents_results_are_made_of_a_summary(run, tmp_path, capsys):
    document = tmp_path / "README.md"
    document.write_text("# Title\n\n<!-- results: out/summary.json -->\nold\n<!-- /results -->\n\nThe end.\n")
    assert main(["report", str(run), "--out", str(tmp_path / "out"), "--readme", str(document)]) == 0
    text = document.read_text()
    assert text.startswith("# Title") and text.endswith("<!-- /results -->\n\nThe end.\n") and "old" not in text
    assert "| `dflash` | 0.8 | 2.00x | 2.00-2.00 | 1.75 |" in text and "a processor (AVX2), 2 threads" in text
    assert with_results(text, tmp_path) == text
    assert main(["report", "--readme", str(document)]) == 0
    assert "as it was" in capsys.readouterr().out


def test_documents_and_summaries_that_cannot_be_used_are_one_sentence(tmp_path, capsys):
    with pytest.raises(InputError, match="there is no '<!-- results"):
        with_results("# Title", tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        section(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"cells": [{}]}')
    with pytest.raises(CheckpointError, match="no summary of a report"):
        section(tmp_path / "bad.json")
    for argv in (["report"], ["report", "--out", "x"], ["report", "x.jsonl", "--readme", "README.md"],
                 ["report", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "o")],
                 ["report", "--readme", str(tmp_path / "none.md")]):  # fmt: skip
        assert main(argv) == 2
        assert capsys.readouterr().err.count("\n") == 1
