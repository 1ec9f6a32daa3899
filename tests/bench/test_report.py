"""The report: numbers worked out by hand, tables in three formats, figures where there is something to draw."""

import csv
import io
import re

import pytest

from made_results import FACTS, HF, PLAIN, method, sized, write_run
from paceline.bench.report.cells import cells
from paceline.bench.report.conditions import conditions
from paceline.bench.report.disturbed import disturbed
from paceline.bench.report.figures import FIGURES
from paceline.bench.report.formats import comma_separated, latex, markdown
from paceline.bench.report.frame import frames
from paceline.bench.report.gathered import gather
from paceline.bench.report.readme import section, with_results
from paceline.bench.report.regret import plan_regrets
from paceline.bench.report.tables import Grid, by_set, overall, titles
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
    dflash = found["dflash", None]
    assert (dflash.speedup, dflash.speedup_low, dflash.speedup_high) == (2.0, 2.0, 2.0)
    assert dflash.tau == 1.75 and dflash.nodes_per_round == 4.0  # 3 accepted in 4 rounds
    assert dflash.tokens_per_s == pytest.approx(32 / 40)
    assert dflash.draft_share == pytest.approx(2 / 7)
    assert (dflash.answers, dflash.same_text, dflash.near_ties) == (4, 3, 1)
    assert (dflash.judged, dflash.right, dflash.hit_limit) == (4, 2, 1.0)
    assert found["dflash", "gsm8k"].answers == 2 and found["dflash", "gsm8k"].same_text == 2
    assert found["hf", None].speedup == pytest.approx(0.8) and found["hf", None].tau is None


def test_speedups_are_over_the_same_runs_plain_decoding(tmp_path):
    slow = method("plain", 80.0, 0)
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, DFLASH]),
        write_run(tmp_path / "b.jsonl", [slow, method("ddtree", 10.0, 3)], facts={**FACTS, "threads": 1}),
    ]
    gathered = gather(paths)
    found = {cell.method: cell for cell in cells(gathered) if cell.set_name is None}
    assert (found["dflash"].speedup, found["ddtree"].speedup) == (2.0, 8.0)
    assert any("differ in threads" in warning for warning in gathered.warnings)


def test_a_method_of_two_runs_is_told_apart_by_their_files(tmp_path):
    runs = {"old": DFLASH, "new": method("dflash", 3.0, 3, block_size=8, tree_budget=7)}
    paths = [write_run(tmp_path / f"{name}.jsonl", [PLAIN, dflash]) for name, dflash in runs.items()]
    assert [m.name for m in gather(paths).methods] == ["plain", "dflash [old]", "dflash [new]"]


def test_a_method_of_two_runs_with_other_settings_is_told_apart_by_them(tmp_path):
    runs = {name: method("dflash", 4.0, 3, block_size=8, tree_budget=nodes) for name, nodes in (("a", 7), ("b", 3))}
    paths = [write_run(tmp_path / f"{name}.jsonl", [PLAIN, dflash]) for name, dflash in runs.items()]
    assert [m.name for m in gather(paths).methods] == ["plain", "dflash [tree_budget=7]", "dflash [tree_budget=3]"]


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
    grid = by_set(found)
    assert grid.columns == ["method", "gsm8k, speed-up", "gsm8k, tau", "humaneval, speed-up", "humaneval, tau",
                    "all prompts, speed-up", "all prompts, tau"]  # fmt: skip
    assert grid.rows[1] == ["dflash", *["2.00x", "1.75"] * 3]
    assert grid.best == frozenset()  # of so few answers
    grid = overall(found)
    assert grid.rows[0][3] == "" and {grid.columns[column] for _, column in grid.best} == {
        "tokens/s",
        "speed-up",
        "tau",
    }
    assert dict(zip(grid.columns, grid.rows[1], strict=True)) == {
        "method": "dflash", "tokens/s": "0.8", "speed-up": "2.00x", "95% interval": "", "tau": "1.75",
        "nodes a round": "4.0", "drafting": "29%", "same text": "3/4; 1 part at a near-tie", "cut at the limit": "100%",
        "repeated 4-grams": "0%", "right": "2/4",
    }  # fmt: skip


def test_tables_come_as_markdown_latex_and_csv(run):
    gathered = gather([run])
    found = cells(gathered)
    grid = Grid([("", "method"), ("s", "100%")], [["a_b", "1 & 2"], ["c", "1.00-2.50"]], frozenset({(1, 1)}))
    assert markdown(grid) == "| method | s, 100% |\n| --- | --- |\n| `a_b` | 1 & 2 |\n| `c` | **1.00-2.50** |\n"
    text = latex(grid, "of $5 at T = 0. The 135M-model", "x")
    for line in (
        r"method & 100\% \\",
        r"a\_b & 1 \& 2 \\",
        r"c & \textbf{1.00--2.50} \\",
        r"\label{tab:x}",
        r"\caption{of \$5 at $T = 0$. The 135M-model}",
        r" & \multicolumn{1}{c}{s} \\",
        r"\cmidrule(lr){2-2}",
    ):
        assert line in text
    assert text.count("{tabular}") == 2 and "resizebox" not in text
    wide = latex(Grid([("", str(n)) for n in range(9)], [["1"] * 9]), "", "x")
    assert r"\begin{table*}" in wide and r"\end{tabular}}" in wide and "graphicx" in wide
    rows = list(csv.DictReader(io.StringIO(comma_separated(found, gathered.methods, FACTS))))
    assert len(rows) == len(found) == 7 * 3
    row = next(row for row in rows if row["method"] == "dflash" and not row["set_name"])
    assert (row["speedup"], row["max_tokens"], row["judged_answers"], row["dtype"]) == ("2.0", "8", "4", "float32")
    sizes = {(row["family"], row["block_size"], row["tree_budget"]) for row in rows if row["family"] == "ddtree"}
    assert sizes == {("ddtree", block, nodes) for block in ("4", "8") for nodes in ("4", "8")}


@pytest.mark.parametrize(
    ("name", "words", "code", "in_latex"),
    [
        ("a|b", r"a\|b", r"a\|b", r"a\textbar{}b"),
        ("a`b", r"a\`b", r"a\`b", "a`b"),
        ("a\nb", "a b", "a b", "a\nb"),
        ("<b>x</b>", r"\<b\>x\</b\>", "`<b>x</b>`", r"\textless{}b\textgreater{}x\textless{}/b\textgreater{}"),
        ("a*b*", r"a\*b\*", "`a*b*`", "a*b*"),
        ("[x](y)", r"\[x\](y)", "`[x](y)`", "[x](y)"),
        ('a"b_1', 'a"b_1', '`a"b_1`', r"a\char34{}b\_1"),
    ],
)
def test_names_are_no_markup(name, words, code, in_latex):
    grid = Grid([("", "method"), (name, "tau")], [[name, "1"]])
    assert markdown(grid).splitlines() == [f"| method | {words}, tau |", "| --- | --- |", f"| {code} | 1 |"]
    assert rf" & \multicolumn{{1}}{{c}}{{{in_latex}}} \\" in latex(grid, "", "x")
    assert rf"    {in_latex} & 1 \\" in latex(grid, "", "x")


def test_seeds_that_differ_in_their_last_digit_are_told_apart(tmp_path):
    path = write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH], seeds=(123456781.0, 123456782.0))
    gathered = gather([path])
    assert list(titles(cells(gathered)).values()) == ["T = 0, seed = 123456781", "T = 0, seed = 123456782"]
    assert (
        len({path.name for path in write_report(gathered, tmp_path / "out")[0] if path.stem.startswith("overall")}) == 4
    )


@pytest.mark.parametrize(("num_prompts", "interval"), [(4, ""), (5, "2.00-2.00")])
def test_of_few_answers_there_is_no_interval(tmp_path, num_prompts, interval):
    path = write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH], num_prompts=num_prompts)
    assert [row[3] for row in overall(cells(gather([path]))).rows] == ["", interval]


def test_rows_of_different_answers_say_how_many(tmp_path):
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, DFLASH], num_prompts=2),
        write_run(tmp_path / "b.jsonl", [PLAIN, method("ddtree", 3.0, 3)], num_prompts=4),
    ]
    grid = overall(cells(gather(paths)))
    assert [row[grid.columns.index("answers")] for row in grid.rows] == ["6", "2", "4"]


def test_regret_weighs_prompts_by_their_time_as_tokens_per_second_do(tmp_path):
    path = write_run(tmp_path / "run.jsonl", [PLAIN, sized(4, 4, 2.0, 2), sized(8, 4, 2.0, 3)], num_prompts=2,
                     slow=[(sized(4, 4, 2.0, 2)[0].name, 1)])  # fmt: skip
    gathered = gather([path])
    (frame,) = frames(gathered, titles(cells(gathered)))
    rows = {row.label: row.loss for row in plan_regrets(frame, frame.families()["ddtree"])}
    assert rows == {"4 nodes, block 8": 0.0, "4 nodes, block 4": pytest.approx(1 - (2 + 4) / (2 + 40))}


def test_conditions_of_several_runs_are_all_said():
    one = {**FACTS, "threads": 1, "accelerator": "H200"}
    said = conditions([FACTS, {**FACTS, "threads": 1}], 6, [9.0, 8.0, 9.0])
    assert "6 answers of at most 8 or 9 tokens; a processor (AVX2), 2 or 1 threads" in said
    assert "1 answer of at most 8 tokens; H200, a processor (AVX2), 1 thread, torch" in conditions([one], 1, [8.0])


def test_a_table_says_what_was_asked_for_it_and_no_more(tmp_path):
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, DFLASH], num_prompts=2),
        write_run(tmp_path / "b.jsonl", [PLAIN, DFLASH], temperatures=(1.0,), facts={**FACTS, "threads": 7}),
    ]
    write_report(gather(paths), tmp_path / "out")
    cold, hot = ((tmp_path / "out" / f"overall_T{t}.md").read_text() for t in (0, 1))
    assert "2 answers of at most 8 tokens; a processor (AVX2), 2 threads" in cold
    assert "4 answers of at most 8 tokens; a processor (AVX2), 7 threads" in hot
    assert "**" not in cold + hot  # there is something to warn of


def test_the_best_on_a_set_is_marked_where_there_are_many_answers(tmp_path):
    grid = by_set(cells(gather([write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH], num_prompts=22)])))
    assert grid.best == {(1, column) for column in range(1, 7)}


def test_texts_are_the_same_of_those_that_plain_decoding_has_too(tmp_path):
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, DFLASH], prompts=[0]),
        write_run(tmp_path / "b.jsonl", [DFLASH], prompts=[1, 2, 3]),
    ]
    (_, row) = overall(cells(gather(paths))).rows
    assert row[3] == "" and row[7] == "1/1"


def test_the_fastest_of_a_family_is_found_by_what_all_of_it_have(tmp_path):
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, sized(4, 4, 2.0, 2)]),
        write_run(tmp_path / "b.jsonl", [sized(8, 4, 4.0, 3)]),
    ]
    gathered = gather(paths)
    (frame,) = frames(gathered, titles(cells(gathered)))
    assert frame.best()["ddtree"].name == sized(4, 4, 2.0, 2)[0].name  # 4 tokens/s against 2


def test_a_family_stays_together_where_one_of_it_must_be_told_apart(tmp_path):
    paths = [
        write_run(tmp_path / "a.jsonl", [PLAIN, sized(4, 4, 2.0, 2), sized(4, 8, 2.0, 2)]),
        write_run(tmp_path / "b.jsonl", [PLAIN, sized(4, 8, 4.0, 3), sized(4, 16, 4.0, 3)]),
    ]
    families = {m.family for m in gather(paths).methods}
    assert families == {"plain", "ddtree [a]", "ddtree [b]"}


@pytest.mark.parametrize("num_prompts", [2, 4])
def test_answers_on_a_busy_machine_are_noticed(tmp_path, num_prompts):
    path = write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH], num_prompts=num_prompts, slow=[("dflash", 1)])
    (said,) = disturbed(gather([path]))
    assert f"1 of {2 * num_prompts} measurements (dflash) took more than 3 times as long a round" in said
    assert disturbed(gather([write_run(tmp_path / "quiet.jsonl", [PLAIN, DFLASH], num_prompts=num_prompts)])) == []


def test_every_temperature_has_tables_of_its_own(tmp_path):
    path = write_run(tmp_path / "run.jsonl", [PLAIN, DFLASH], temperatures=(0.0, 1.0))
    found = cells(gather([path]))
    assert list(titles(found).values()) == ["T = 0", "T = 1"]
    written = {p.name for p in write_report(gather([path]), tmp_path / "out")[0]}
    assert {"by_set_T0.md", "by_set_T1.tex", "overall_T0.tex", "accepted_lengths_T1.png", "index.html"} <= written


def test_a_plan_is_what_tells_methods_of_a_family_apart():
    assert sized(4, 8, 1.0, 1)[0].plan == "8 nodes, block 4"
    assert method("mixture+joint:runs/lr=3", 1.0, policy="joint:runs/lr=3")[0].plan == "joint:runs/lr=3"
    assert DFLASH[0].plan == ""


def test_files_per_prompt_set_make_one_row(tmp_path):
    paths = [write_run(tmp_path / f"{i}.jsonl", [PLAIN, DFLASH], prompts=prompts) for i, prompts in
             enumerate(([0, 2], [1, 3]))]  # fmt: skip
    gathered = gather(paths)
    assert [m.name for m in gathered.methods] == ["plain", "dflash"]
    assert {cell.answers for cell in cells(gathered) if cell.set_name is None} == {4}
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
    runs = {"a": DFLASH, "b": method("dflash", 3.0, 3, block_size=8, tree_budget=7)}
    paths = [write_run(tmp_path / name / "run.jsonl", [PLAIN, dflash]) for name, dflash in runs.items()]
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
    assert speed.get_ylabel() == "speed-up over plain\n(median, 95% interval)" and speed.get_title() == "ddtree"
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
    (out / "mine.txt").write_text("mine")
    (out / "by_set_9.md").write_text("mine too")
    assert main(["report", str(run), "--out", str(out)]) == 0
    kept = {"mine.txt", "by_set_9.md"}
    assert {path.name for path in out.iterdir()} == {(tmp_path / line).name for line in said} | kept


def test_a_report_takes_the_place_of_an_earlier_one_that_had_more_parts(run, tmp_path):
    out = tmp_path / "out"
    two = write_run(tmp_path / "two.jsonl", [PLAIN, DFLASH], temperatures=(0.0, 1.0))
    assert main(["report", str(two), "--out", str(out)]) == 0
    assert (out / "overall_T1.md").exists()
    assert main(["report", str(run), "--out", str(out)]) == 0
    assert not (out / "overall_T1.md").exists() and (out / "overall.md").exists()


@pytest.mark.parametrize("name", ["index.html", "results.csv", "summary.json", "by_set.md"])
def test_a_report_writes_over_no_file_of_somebody_else(run, tmp_path, name, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    assert main(["report", str(run), "--out", str(out)]) == 2
    assert "no report of this version wrote it" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: "mine"}


@pytest.mark.parametrize("what", ["folder", "link"])
def test_what_took_the_place_of_a_report_s_file_is_left_and_so_is_the_report(run, tmp_path, what, capsys):
    out = tmp_path / "out"
    write_report(gather([run]), out)
    (out / "results.csv").unlink()
    if what == "folder":
        (out / "results.csv").mkdir()
    else:
        (out / "results.csv").symlink_to(tmp_path / "later")
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert main(["report", str(run), "--out", str(out)]) == 2
    assert "no report of this version wrote it" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert {path.name for path in out.iterdir()} == {*before, "results.csv"}


@pytest.mark.parametrize("name", ["\\u0000", "\\ud800", "../mine.txt", "..", ""])
def test_names_in_a_summary_that_no_report_wrote_are_let_be(run, tmp_path, name):
    out = tmp_path / "out"
    write_report(gather([run]), out)
    (tmp_path / "mine.txt").write_text("mine")
    text = (out / "summary.json").read_text()
    (out / "summary.json").write_text(text.replace('"written": [', f'"written": ["{name}",', 1))
    write_report(gather([run]), out)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_report_writes_over_none_of_what_it_is_made_of(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["report", str(run), "--out", str(out)]) == 0
    (out / "results.csv").write_bytes(run.read_bytes())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert main(["report", str(out / "results.csv"), "--out", str(out)]) == 2
    assert "is read and would be written" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_the_same_measurements_under_two_names_are_refused(run, tmp_path):
    (tmp_path / "copy.jsonl").write_text(run.read_text().replace('"number": 1', '"number":  1') + '{"num')
    with pytest.raises(InputError, match="hold the same measurements"):
        gather([run, tmp_path / "copy.jsonl"])


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
    assert gather([path]).warnings == ("run.jsonl is not complete: 1 prompt missing.",)


def test_a_documents_results_are_made_of_a_summary(run, tmp_path, capsys):
    document = tmp_path / "README.md"
    document.write_text("# Title\n\n<!-- results: out/summary.json -->\nold\n<!-- /results -->\n\nThe end.\n")
    assert main(["report", str(run), "--out", str(tmp_path / "out"), "--readme", str(document)]) == 0
    text = document.read_text()
    assert text.startswith("# Title") and text.endswith("<!-- /results -->\n\nThe end.\n") and "old" not in text
    assert "| `dflash` | 0.8 | 2.00x |  | 1.75 |" in text and "a processor (AVX2), 2 threads" in text
    assert with_results(text, tmp_path) == text
    assert main(["report", "--readme", str(document)]) == 0
    assert "as it was" in capsys.readouterr().out


def test_documents_and_summaries_that_cannot_be_used_are_one_sentence(tmp_path, capsys):
    with pytest.raises(InputError, match="results begin 0 times in the document, but 0 sections are whole"):
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


SECTION = "<!-- results: out/summary.json -->\nold\n<!-- /results -->\n"


@pytest.mark.parametrize(
    "document",
    [
        "<!-- results: out/summary.json -->\nmine\n" + SECTION,
        SECTION + "<!-- results: out/summary.json -->\nmine\n",
        "<!-- results: out/summary.json -->\nold\n<!-- /result -->\nmine\n<!-- /results -->\n",
        "<!-- results: a b.json -->\nmine\n<!-- /results -->\n",
        "<!--results: out/summary.json-->\nmine\n<!-- /results -->\n",
    ],
)
def test_a_section_that_is_not_whole_loses_nobodys_words(run, tmp_path, document, capsys):
    write_report(gather([run]), tmp_path / "out")
    path = tmp_path / "README.md"
    path.write_text(document)
    assert main(["report", "--readme", str(path)]) == 2
    assert "sections are whole" in capsys.readouterr().err
    assert path.read_text() == document


def test_a_document_keeps_its_ends_of_lines_its_link_and_its_permissions(run, tmp_path):
    write_report(gather([run]), tmp_path / "out")
    path = tmp_path / "real.md"
    path.write_bytes(("# Title\n" + SECTION).replace("\n", "\r\n").encode())
    path.chmod(0o664)
    link = tmp_path / "README.md"
    link.symlink_to(path)
    assert main(["report", "--readme", str(link)]) == 0
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o664
    text = path.read_bytes().decode()
    assert "dflash" in text and text.count("\n") == text.count("\r\n")


def test_a_document_that_cannot_be_read_is_said_before_the_report_is_written(run, tmp_path, capsys):
    assert main(["report", str(run), "--out", str(tmp_path / "out"), "--readme", str(tmp_path / "none.md")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
