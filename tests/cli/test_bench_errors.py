"""`paceline bench` and `paceline demo` refuse what they cannot use before anything is loaded."""

from pathlib import Path

import pytest

from paceline.cli import main


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    def load(*arguments):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("paceline.bench.worker.make_worker", load)
    monkeypatch.setattr("paceline.cli.demo.load_model", load)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prompts", "nowhere.jsonl"], "'nowhere.jsonl' cannot be read"),
        (["--limit", "0"], "limit is 0"),
        (["--repeats", "0"], "repeats is 0"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--json", "no/such/folder/out.json"], "cannot be written"),
        (["--json", "."], "cannot be written"),
        (["--json", "/dev/null"], "cannot be written"),
        (["--tree-budget", "100000"], "at most 4096"),
        (["--methods"], "names no method"),
        (["--methods", "hf", "--temperature", "1"], "leave hf out"),
        (["--policies", "cost_aware", "--methods", "plain", "dflash"], "add mixture, for one"),
        (["--policies", "fixed:4", "fixed:4"], "names a policy twice"),
        (["--methods", "hf", "--regex", "a+"], "leave hf out"),
        (["--regex", "a+", "--ebnf", 'root ::= "a"'], "leave all but one out"),
        (["--tree-budget", "0"], "tree_budget is 0"),
        (["--block-size", "1"], "block_size is 1"),
        (["--methods", "ddtree", "ddtree-adapt"], "use --repeats 1"),
        (["--methods", "ddtree-adapt", "--repeats", "1", "--results", "r.jsonl"], "keep its figures with --json"),
        (["--results", "no/such/folder/out.jsonl"], "--results 'no/such/folder/out.jsonl' cannot be written"),
        (["--turns", "0"], "turns is 0"),
        (["--workers", "0"], "workers is 0"),
        (["--workers", "2"], "add --ray"),
        (["--judge", "answers"], "no prompt has a reference"),
        (["--sweep", "dtype=float32,bfloat16"], "run once for each"),
        (["--sweep", "magic=1,2"], "must be NAME=VALUE"),
        (["--sweep", "tree_budget"], "must be NAME=VALUE"),
        (["--sweep", "tree_budget=4,x"], "must be whole numbers, such as tree_budget=1,2"),
        (["--sweep", "temperature=x"], "must be numbers, such as temperature=1,2"),
        (["--sweep", "seed=1,2"], "greedy answers do not depend on it"),
        (["--sweep", "max_tokens=4,8", "--max-tokens", "256"], "leave one of both out"),
        (["--sweep", "temperature=0,1", "--temperature", "0"], "leave one of both out"),
        (["--sweep", "seed=9007199254740992,9007199254740993", "--temperature", "1"], "name smaller ones"),
        (["--gpus", "-1"], "gpus is -1"),
        (["--gpus", "nan"], "gpus is nan"),
        (["--gpus", "1"], "add --ray"),
        (["--sweep", "tree_budget=4,4"], "a value of tree_budget twice"),
        (["--sweep", "tree_budget=4", "--sweep", "tree_budget=8"], "names tree_budget twice"),
        (["--sweep", "tree_budget=0,4"], "tree_budget is 0"),
        (["--sweep", "temperature=0,1", "--methods", "plain", "hf"], "leave hf out"),
        (["--sweep", "tree_budget=4,8", "--methods", "plain", "dflash"], "no method has one"),
        (["--sweep", "tree_budget=4,8", "--tree-budget", "4"], "leave one of both out"),
        (["--sweep", "max_tokens=64,128", "--max-tokens", "32"], "leave one of both out"),
        (["--sweep", "presence_penalty=0,1", "--methods", "plain", "hf"], "leave hf out"),
        (["--json", "out.json", "--results", "out.json"], "which it would replace"),
        (["--json", "out.json", "--results", "../{here}/out.json"], "which it would replace"),
        (["--json", "tests/../out.json", "--results", "out.json"], "which it would replace"),
        (["--sweep", "temperature=0,1", "--policies", "fixed:4"], "at one temperature a run"),
    ],
)
def test_bench_refuses_in_one_sentence(argv, message, capsys):
    here = Path.cwd().name
    assert main(["bench", *(word.replace("{here}", here) for word in argv)]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_bench_does_not_write_over_its_prompts(tmp_path, capsys):
    prompts = tmp_path / "made.jsonl"
    prompts.write_text('{"turns": ["hello"]}\n')
    assert main(["bench", "--prompts", str(prompts), "--json", str(tmp_path / "." / "made.jsonl")]) == 2
    assert "which it would replace" in capsys.readouterr().err
    assert main(["bench", "--prompts", str(prompts), "--results", str(prompts)]) == 2
    assert "is the file of prompts too" in capsys.readouterr().err
    assert prompts.read_text() == '{"turns": ["hello"]}\n'


def test_bench_refuses_names_that_no_results_file_could_hold(tmp_path, capsys):
    (tmp_path / "half.jsonl").write_text('{"id": "\\ud800", "turns": ["hello"]}\n')
    assert main(["bench", "--prompts", str(tmp_path / "half.jsonl")]) == 2
    assert "line 1 is not of the form" in capsys.readouterr().err
    assert main(["bench", "--prompts", "half\udcff.jsonl"]) == 2
    assert "is not UTF-8; rename it" in capsys.readouterr().err


def test_bench_refuses_prompts_nested_without_end(tmp_path, capsys):
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    assert main(["bench", "--prompts", str(tmp_path / "deep.jsonl")]) == 2
    err = capsys.readouterr().err
    assert "line 1 is not of the form" in err and err.count("\n") == 1


def test_bench_refuses_a_prompt_file_that_is_not_utf8(tmp_path, capsys):
    (tmp_path / "p.jsonl").write_bytes(b'{"turns": ["\xff"]}')
    assert main(["bench", "--prompts", str(tmp_path / "p.jsonl")]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_an_unknown_method_exits_2(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "--methods", "magic"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("argv", "message"), [(["--max-tokens", "0"], "max_tokens is 0"), (["--tree-budget", "0"], "tree_budget is 0")]
)
def test_demo_refuses_in_one_sentence(argv, message, capsys):
    assert main(["demo", *argv]) == 2
    assert message in capsys.readouterr().err
