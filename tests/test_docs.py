"""What the README and the documents say can be done as they say it."""

import ast
import inspect
import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import paceline
from paceline.bench.report.cells import as_row, cells
from paceline.bench.report.gathered import gather
from paceline.bench.report.readme import with_results
from paceline.cli import COMMANDS, parse
from paceline.drafters.base import DraftRequest, NoState
from paceline.loading import load
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.prompts import read_prompts
from paceline.text_model import Model
from paceline.types import Completion, GenerationSettings, Piece, Statistics
from tiny_models import tiny_target

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = {path.name: path.read_text("utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}


def blocks(text: str, language: str) -> list[str]:
    """Contents of the fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shown_commands() -> list[str]:
    """Whole command lines, from console blocks."""
    lines = [line for text in DOCUMENTS.values() for block in blocks(text, "console") for line in block.splitlines()]
    return [line for line in lines if line.startswith("paceline ")]


def mentioned_commands() -> list[str]:
    """Commands that a sentence mentions between backticks; they need not be complete."""
    return sorted({found for text in DOCUMENTS.values() for found in re.findall(r"`(paceline [a-z][^`\n]*)`", text)})


def tree_paths() -> list[str]:
    """Paths of the annotated tree, relative to the repository."""
    lines = blocks(README, "text")[0].splitlines()
    folders, paths = [lines[0].rstrip("/")], []
    for line in lines[1:]:
        drawn, name = re.match(r"([│├└─ ]+)(\S+)", line).groups()
        folders[len(drawn) // 4 :] = [name.rstrip("/")]
        paths.append("/".join(folders))
    return paths


def test_the_readme_begins_with_its_two_commands():
    assert README.splitlines()[2:4] == ["    make demo", "    make test"]


def test_every_make_target_that_is_named_exists():
    named = set(re.findall(r"(?:`|^ {4})make ([a-z]+)", README, re.MULTILINE))
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= named <= rules


@pytest.mark.parametrize("command", shown_commands())
def test_every_command_that_is_shown_can_be_parsed(command):
    run, _ = parse(shlex.split(command)[1:])
    assert callable(run)


@pytest.mark.parametrize("command", mentioned_commands())
def test_every_command_that_is_mentioned_has_the_flags_named_with_it(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = shlex.split(command)[1:]
    assert words[0] in COMMANDS
    subcommands = words[: next((i for i, word in enumerate(words) if word.startswith("-")), len(words))]
    with pytest.raises(SystemExit) as ended:
        parse([*subcommands, "--help"])
    assert ended.value.code == 0
    known = set(re.findall(r"--[a-z][a-z.-]*", capsys.readouterr().out))
    assert {word for word in words if word.startswith("--")} <= known


def test_every_path_of_the_annotated_tree_exists():
    paths = tree_paths()
    assert "src/paceline/train/methods" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_annotated_tree_shows_every_part_of_the_package():
    source = ROOT / "src" / "paceline"
    parts = {p.name for p in source.glob("*.py") if not p.name.startswith("__")}
    parts |= {p.parent.name for p in source.glob("*/__init__.py")}
    assert parts <= {Path(path).name for path in tree_paths() if path.count("/") == 2}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_to_a_file_leads_somewhere(name):
    folder = ROOT if name == "README.md" else ROOT / "docs"
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", DOCUMENTS[name]) if "://" not in link]
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_source_file_that_is_named_exists(name):
    paths = re.findall(r"`(src/paceline/[^`]+)`", DOCUMENTS[name])
    assert [path for path in paths if not (ROOT / path).exists()] == []


NAMED_IN = [(name, path, document) for document, text in DOCUMENTS.items()
            for name, path in re.findall(r"`(\w+)` (?:in|of) `(src/[\w/]+\.py)`", text)]  # fmt: skip


def test_documents_name_places_in_the_source():
    assert NAMED_IN


@pytest.mark.parametrize(("name", "path", "document"), NAMED_IN)
def test_what_a_document_places_in_a_file_is_there(name, path, document):
    assert re.search(rf"\b(def|class) {name}\b|^{name}\b", (ROOT / path).read_text(), re.MULTILINE), document


def test_the_python_of_the_readme_uses_what_there_is():
    (block,) = blocks(README, "python")
    code = ast.parse(block)
    imported = [alias.name for node in ast.walk(code) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert imported and set(imported) <= set(paceline.__all__)
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    signatures = {"load": load, "GenerationSettings": GenerationSettings}
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in signatures:
            keywords = {keyword.arg: None for keyword in call.keywords}
            inspect.signature(signatures[call.func.id]).bind(*call.args, **keywords)
    owners = {"model": Model, "piece": Piece, "answer": Completion, "statistics": Statistics}
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute):
            owner = owners[node.value.id if isinstance(node.value, ast.Name) else node.value.attr]
            assert hasattr(owner, node.attr) or node.attr in owner.__annotations__


def test_the_readme_explains_every_argument_of_load():
    table = README.split("| `load` takes |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(inspect.signature(load).parameters)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_the_drafter_of_the_worked_example_is_lossless_and_accepts_something(temperature):
    target = tiny_target("llama", vocab_size=8)
    settings = GenerationSettings(max_tokens=24, temperature=temperature, seed=3)
    example = {"target": target, "prompt": [1, 2, 3], "settings": settings}
    for block in blocks(DOCUMENTS["add-a-drafter.md"], "python"):
        exec(compile(block, "docs/add-a-drafter.md", "exec"), example)
    request = example["request"]
    assert request.tokens == plain_decode(target, [1, 2, 3], settings)
    assert request.statistics.accepted > 0
    drafter = example["FollowerDrafter"]()
    for tokens in ([5], [1, 2, 1, 3, 1, 2, 1]):
        (tree,) = drafter.draft(
            NoState(), [DraftRequest(tokens, block_size=5, tree_budget=4, max_depth=9)], StageClock()
        )
        tree.validate()


def test_every_reported_problem_names_tests_that_there_are():
    rows = re.findall(r"^\| (\d+) \|.*\| (`tests/.*`) \|$", DOCUMENTS["reported-problems.md"], re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 15)]
    for _, tests in rows:
        for path, name in re.findall(r"`([^`]+)::([^`]+)`", tests):
            assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), name


def test_the_prompt_sets_that_the_readme_names_come_with_the_project():
    named = set(re.findall(r"prompt_sets/\w+\.jsonl", README))
    assert named
    for path in sorted(named):
        assert read_prompts((ROOT / path,), None)
        ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
        assert ignored.returncode != 0, f"{path} is not part of the repository"


def test_the_results_of_the_readme_are_those_of_the_summary_that_they_name():
    assert "<!-- results: docs/results/" in README
    assert with_results(README, ROOT) == README


def test_the_command_of_the_results_is_the_one_that_made_them():
    (path,) = re.findall(r"<!-- results: (\S+) -->", README)
    (made_with,) = json.loads((ROOT / path).read_text("utf-8"))["provenance"]
    (shown,) = [line for line in shown_commands() if "--results run.jsonl" in line and "hf-dflash" in line]
    _, ours = parse(shlex.split(shown)[1:])
    _, theirs = parse(made_with["command"][1:])
    assert replace(ours, prompts=(), results=None) == replace(theirs, prompts=(), results=None)


def test_the_summary_is_made_of_the_measurements_beside_it():
    folder = ROOT / "docs" / "results" / "float32"
    made = json.loads(json.dumps([as_row(cell) for cell in cells(gather([folder / "run.jsonl"]))]))
    assert made == json.loads((folder / "summary.json").read_text("utf-8"))["cells"]
