"""The field's prompt sets: each row of the real schema becomes the turns of the DFlash evaluation."""

import sys
from pathlib import Path

import pytest

import paceline.prompts
from paceline.errors import InputError
from paceline.prompt_sets import PROMPT_SETS, Reference, fetch
from paceline.prompts import read_prompts

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
ROWS = {
    "gsm8k": ({"question": "How many?", "answer": "#### 3"}, ["How many?" + BOXED]),
    "math500": (
        {"problem": "Find $x$.", "solution": "...", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "a"},
        ["Find $x$." + BOXED],
    ),
    "aime24": (
        {"id": 60, "problem": "Every morning", "solution": "s", "answer": "204", "url": "u", "year": "2024"},
        ["Every morning" + BOXED],
    ),
    "aime25": ({"problem_idx": 1, "problem": "Find the sum", "answer": 70}, ["Find the sum" + BOXED]),
    "humaneval": (
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "", "test": "", "entry_point": "f"},
        [
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            "```python\ndef f():\n\n```"
        ],
    ),
    "mbpp": (
        {"task_id": 2, "prompt": "Write a function.", "code": "", "test_imports": [], "test_list": ["assert f()"]},
        ["Write a function."],
    ),
    "swe-bench-lite": (
        {"repo": "a/b", "instance_id": "a__b-1", "problem_statement": "It fails.", "patch": "", "hints_text": ""},
        ["Problem Statement:\nIt fails.\nPlease fix the issue described above."],
    ),
    "mt-bench": (
        {"prompt_id": 81, "prompt": ["Compose a post.", "Rewrite it."], "category": "writing", "reference": []},
        ["Compose a post.", "Rewrite it."],
    ),
    "alpaca": ({"instruction": "Sort.", "input": "b a", "output": "a b", "text": ""}, ["Sort.\n\nInput:\nb a"]),
    "nq": ({"question": "who played anna", "answer": ["x"]}, ["Who played anna?"]),
    "wmt23": ({"de-en": {"de": "Guten Tag.", "en": "Good day."}}, ["Translate German to English: Guten Tag."]),
    "cnn_dm": ({"article": "A van drove.", "highlights": "van", "id": "1"}, ["Summarize: A van drove."]),
    "sharegpt": (
        {"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"},
                                      {"from": "human", "value": "Bye"}]},
        ["Hi", "Bye"],
    ),
    "wsc": (
        {"text": "Mark told Pete lies.", "span1_index": 0, "span2_index": 2, "span1_text": "Mark", "span2_text": "He",
         "idx": 0, "label": 0},
        ['Mark told Pete lies. Does "He" refer to "Mark"?'],
    ),
    "copa": (
        {"premise": "The man turned on the faucet.", "choice1": "It filled.", "choice2": "It flowed.",
         "question": "effect", "idx": 0, "label": 1},
        ["The man turned on the faucet. A: It filled. B: It flowed."],
    ),
}  # fmt: skip


def hub(row, asked=None):
    def load(*place, **options):
        if asked is not None:
            asked.append((place, options))
        return iter([row] * 5)

    return load


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_of_the_real_schema_becomes_the_turns_of_the_evaluation(name):
    row, turns = ROWS[name]
    asked = []
    assert [found for found, _ in fetch(name, 3, hub(row, asked))] == [turns] * 3
    ((place, options),) = asked
    chosen = PROMPT_SETS[name]
    assert options["split"] == chosen.split and options["streaming"]
    assert place == (("json",) if chosen.files else (chosen.path, chosen.config))


def test_a_problem_to_be_programmed_has_the_benchmarks_frame():
    row = {"question_content": "Add two numbers.", "starter_code": "", "platform": "x"}
    (((free,), _),) = fetch("livecodebench", 1, hub(row))
    assert "### Question:\nAdd two numbers.\n\n### Format: Write your code" in free and "# YOUR CODE HERE" in free
    (((framed,), _),) = fetch("livecodebench", 1, hub(row | {"starter_code": "class Solution:"}))
    assert "Use the following code structure:\n```python\nclass Solution:\n```" in framed
    assert fetch("alpaca", 1, hub({"instruction": "Sing.", "input": ""})) == [(["Sing."], None)]


def test_every_set_is_tested():
    assert set(ROWS) | {"livecodebench", "spec-bench"} == set(PROMPT_SETS)


def test_what_cannot_be_had_is_one_sentence_that_says_what_to_do():
    def unreachable(*place, **options):
        raise ConnectionError("no route\nto host")

    with pytest.raises(InputError, match=r"'gsm8k' is no file here and cannot be fetched.*no route to host.*turns"):
        fetch("gsm8k", 1, unreachable)
    with pytest.raises(InputError, match=r"has other rows than expected.*question"):
        fetch("gsm8k", 1, hub({"other": 1}))
    with pytest.raises(InputError, match="on no hub"):
        fetch("spec-bench", 1, hub({}))


def test_without_the_package_a_name_is_refused_and_files_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"paceline\[data\]"):
        read_prompts((Path("gsm8k"),), 1)
    (tmp_path / "gsm8k").write_text('{"turns": ["mine"]}')
    assert [prompt.text for prompt in read_prompts((Path("gsm8k"),))] == ["mine"]


def test_a_named_set_is_read_as_a_file_is(monkeypatch):
    rows = [(["one", "more"], None), (["two"], Reference("2"))]
    monkeypatch.setattr(paceline.prompts, "fetch", lambda name, limit: rows[:limit])
    prompts = read_prompts((Path("mt-bench"),), 2)
    assert [(p.set_name, p.id, p.text) for p in prompts] == [("mt-bench", "0", "one"), ("mt-bench", "1", "two")]
    assert prompts[0].turns == ("one", "more") and prompts[1].reference == Reference("2")


@pytest.mark.parametrize(
    ("name", "row", "reference"),
    [
        ("gsm8k", {"question": "q", "answer": "6*12=<<6*12=72>>72\n#### 1,072"}, Reference("1072")),
        ("math500", {"problem": "p", "answer": "\\frac{1}{2}"}, Reference("\\frac{1}{2}")),
        ("aime25", {"problem": "p", "answer": 70}, Reference("70")),
        (
            "humaneval",
            {"prompt": "def f():\n", "test": "def check(g):\n    assert g()", "entry_point": "f"},
            Reference(tests="def check(g):\n    assert g()\ncheck(f)\n", stub="def f():\n"),
        ),
        (
            "mbpp",
            {"prompt": "p", "test_imports": ["import math"], "test_list": ["assert f(1)", "assert f(2)"]},
            Reference(tests="import math\nassert f(1)\nassert f(2)\n"),
        ),
    ],
)
def test_sets_whose_answers_can_be_judged_say_by_what(name, row, reference):
    ((_, found),) = fetch(name, 1, hub(row))
    assert found == reference
