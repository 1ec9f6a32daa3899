import json

import pytest

from paceline.errors import InputError
from paceline.prompt_sets import Reference
from paceline.prompts import read_prompts


def test_our_own_prompts_are_there_and_differ_in_kind():
    prompts = read_prompts(())
    assert len({p.id for p in prompts}) == len(prompts) >= 6


def test_the_first_turns_of_every_file_are_read_in_order(tmp_path):
    for name in ("a", "b"):
        rows = [{"id": i, "turns": [f"{name}{i}", "second"]} for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts = read_prompts((tmp_path / "b.jsonl", tmp_path / "a.jsonl"), limit=2)
    assert [(p.set_name, p.id, p.text) for p in prompts] == [
        ("b", "0", "b0"),
        ("b", "1", "b1"),
        ("a", "0", "a0"),
        ("a", "1", "a1"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        (b"", "holds no prompts"),
        (b'{"turns": ["x"]}\nnot json', "line 2"),
        (b'{"turns": []}', "line 1"),
        (b'{"turns": [3]}', "line 1"),
        (b'{"prompt": "x"}', "line 1"),
        (b"[1, 2]", "line 1"),
        (b'{"turns": "one turn"}', "line 1"),
        (b'{"turns": ["half a character \\ud83d"]}', "line 1"),
        (b'{"turns": ["x", 3]}', "line 1"),
        (b'{"turns": ["x"], "reference": "3"}', "line 1"),
        (b'{"turns": ["x"], "reference": {}}', "line 1"),
        (b'{"turns": ["x"], "reference": {"answr": "3"}}', "line 1"),
        (b'{"turns": ["x"], "reference": {"answer": "3", "tests": "assert f()"}}', "line 1"),
    ],
)
def test_an_unusable_file_is_refused_with_the_place(tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_prompts((path,))


def test_later_turns_and_references_are_kept(tmp_path):
    row = {"turns": ["a", "b", "c"], "reference": {"tests": "assert f()", "stub": "def f():"}}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    (prompt,) = read_prompts((tmp_path / "p.jsonl",))
    assert (prompt.text, prompt.later, prompt.turns) == ("a", ("b", "c"), ("a", "b", "c"))
    assert prompt.reference == Reference(tests="assert f()", stub="def f():")


def test_a_byte_order_mark_and_unicode_line_separators_are_no_obstacle(tmp_path):
    text = json.dumps({"turns": ["one\u2028two\u0085three"]}, ensure_ascii=False)
    (tmp_path / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    assert read_prompts((tmp_path / "p.jsonl",))[0].text == "one\u2028two\u0085three"


def test_a_missing_file_and_an_absurd_limit_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts((tmp_path / "none.jsonl",))
    with pytest.raises(InputError, match="limit is 0"):
        read_prompts((), limit=0)
