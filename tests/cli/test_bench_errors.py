"""`paceline bench` and `paceline demo` refuse what they cannot use before anything is loaded."""

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
        (["--sweep", "tree_budget=4,x"], "must be numbers"),
        (["--sweep", "tree_budget=4,4"], "a value of tree_budget twice"),
        (["--sweep", "tree_budget=4", "--sweep", "tree_budget=8"], "names tree_budget twice"),
        (["--sweep", "tree_budget=0,4"], "tree_budget is 0"),
        (["--sweep", "temperature=0,1", "--methods", "plain", "hf"], "leave hf out"),
        (["--sweep", "tree_budget=4,8", "--methods", "plain", "dflash"], "no method has one"),
        (["--sweep", "tree_budget=4,8", "--tree-budget", "4"], "leave one of both out"),
        (["--sweep", "max_tokens=64,128", "--max-tokens", "32"], "leave one of both out"),
        (["--sweep", "presence_penalty=0,1", "--methods", "plain", "hf"], "leave hf out"),
        (["--json", "out.json", "--results", "out.json"], "name the same file"),
        (["--sweep", "temperature=0,1", "--policies", "fixed:4"], "at one temperature a run"),
    ],
)
def test_bench_refuses_in_one_sentence(argv, message, capsys):
    assert main(["bench", *argv]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


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
