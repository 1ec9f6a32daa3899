"""Which drafter serves which method."""

import io

import pytest
from rich.console import Console

from paceline.bench.methods import Drafting, build_methods
from paceline.bench.run import Bench, measure
from paceline.bench.stream import along_the_stream
from paceline.bench.summary import summarise
from paceline.bench.table import results_table
from paceline.checkpoints.dialect import Dialect
from paceline.checkpoints.eagle3 import save_eagle3
from paceline.checkpoints.specblock import save_specblock
from paceline.checkpoints.z_lab import save_dflash
from paceline.errors import CheckpointError, InputError
from paceline.loading import load
from paceline.prompts import Prompt
from paceline.target_loading import load_hugging_face
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_eagle3 import tiny_eagle3
from tiny_folder import write_tiny_folder
from tiny_specblock import tiny_specblock


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(target, DFlash drafter, SpecBlock drafter)."""
    folder = tmp_path_factory.mktemp("methods")
    save_dflash(tiny_network(), folder / "dflash")
    save_specblock(tiny_specblock(), folder / "specblock")
    save_eagle3(tiny_eagle3(), folder / "eagle3")
    return str(write_tiny_folder(folder / "target")), str(folder / "dflash"), str(folder / "specblock")


def test_each_drafter_serves_the_methods_of_its_dialect(folders):
    target, dflash, specblock = folders
    eagle3 = specblock.replace("specblock", "eagle3")
    drafting = Drafting((specblock, dflash, eagle3), policies=("fixed:4:3",))
    assert drafting.by_dialect() == {Dialect.Z_LAB: dflash, Dialect.SPECBLOCK: specblock, Dialect.EAGLE3: eagle3}
    names = ["plain", "dflash", "mixture", "specblock", "specblock-static", "eagle3", "eagle3-static"]
    methods = build_methods(names, load(target, "none"), None, drafting, lambda drafter: {})
    with_policy = {"mixture", "specblock", "specblock-static", "eagle3", "eagle3-static"}
    assert [m.name for m in methods] == [
        shown for name in names for shown in ((name, f"{name}+fixed:4:3") if name in with_policy else (name,))
    ]
    answers = [method.answer([1, 3, 2], GenerationSettings(max_tokens=12)) for method in methods]
    assert len({answer.tokens for answer in answers}) == 1
    static = next(m for m in methods if m.name == "specblock-static")
    assert static.engine.parts.drafter.tree.width is not None


@pytest.mark.slow
def test_a_method_that_learns_stands_beside_its_frozen_counterpart(folders):
    target, dflash, _ = folders
    model, names = load(target, "none"), ["plain", "ddtree", "ddtree-adapt"]
    methods = build_methods(names, model, None, Drafting((dflash,), num_queries=21), lambda drafter: {})
    adapter = methods[2].engine.parts.observer
    assert adapter.settings.expected_queries == 21
    adapter.bandit.choose = lambda *_: "whole" if len(adapter.updates) < 2 else None
    values = iter([1.0, 1.5, 1.5, 1.0, 1.2])
    adapter.learner.measure = lambda network, apart: (next(values), 50)
    prompts = [Prompt("tiny", str(i), f"w{1 + i} w2 w3") for i in range(18)]
    settings = GenerationSettings(max_tokens=12, ignore_eos=True)
    done = measure(Bench(model, methods, [(settings, {})]), prompts, lambda _: None)
    frozen, learning = rows = along_the_stream(methods, done)
    assert [row["method"] for row in rows] == ["ddtree", "ddtree-adapt"]
    assert [(part["first"], part["last"]) for part in frozen["parts"]] == [(3 * i + 1, 3 * i + 3) for i in range(6)]
    assert all(part["acceptance_length"] >= 1 for part in learning["parts"])
    assert [(u["kept"], u["before"], u["after"]) for u in learning["updates"]] == [(True, 1.0, 1.5), (False, 1.5, 1.2)]
    assert all(0 < update["query"] <= 19 and update["seconds"] > 0 for update in learning["updates"])
    seconds = {name: sum(x.seconds for x in done if x.method == name) for name in names}
    assert learning["over_frozen"] == pytest.approx(seconds["ddtree"] / seconds["ddtree-adapt"])
    console = Console(file=io.StringIO(), width=200)
    console.print(results_table(summarise(methods, done), {}, (), rows))
    text = console.file.getvalue()
    assert "tau of queries" in text and "16-18" in text and "drafter calls" in text
    assert along_the_stream(methods[:2], done) == []


def test_drafters_that_serve_no_method_or_the_same_ones_are_refused(folders, tmp_path):
    target, dflash, _ = folders
    model = load(target, "none")
    with pytest.raises(InputError, match="one of each kind at most"):
        Drafting((dflash, dflash)).by_dialect()
    with pytest.raises(InputError, match="none with a network"):
        Drafting(("prompt_lookup",)).by_dialect()
    with pytest.raises(CheckpointError, match="does not exist"):
        Drafting((str(tmp_path / "nowhere"),)).by_dialect()
    with pytest.raises(InputError, match="which none of the methods uses; add one of dflash"):
        build_methods(["plain"], model, None, Drafting((dflash,)), lambda drafter: {})
    with pytest.raises(InputError, match="needs a specblock --drafter"):
        build_methods(["specblock"], model, None, Drafting(()), lambda drafter: {})


def test_transformers_own_dflash_generation_accepts_what_our_chain_does(folders):
    target, dflash, _ = folders
    model, reference = load(target, "none"), load_hugging_face(target, "float32", "cpu")
    names = ["plain", "dflash", "hf", "hf-dflash"]
    methods = build_methods(names, model, reference, Drafting((dflash,)), lambda drafter: {})
    for prompt in ([1, 3, 2], [5, 4, 9, 9, 30, 2, 7]):
        plain, ours, theirs, drafted = (m.answer(prompt, GenerationSettings(max_tokens=24)) for m in methods)
        assert plain.tokens == ours.tokens == theirs.tokens == drafted.tokens
        counts = drafted.statistics
        assert counts.tokens == 1 + counts.rounds + counts.accepted == 24
        assert abs(counts.rounds - ours.statistics.rounds) <= 1 and counts.drafter_calls > 0
    bench = Bench(model, methods, [(GenerationSettings(max_tokens=8), {})])
    done = measure(bench, [Prompt("tiny", "0", "w1 w3 w2")], print)
    rows = {row["method"]: row for row in summarise(methods, done)}
    assert rows["hf-dflash"]["acceptance_length"] >= 1 and rows["hf-dflash"]["overhead"] is None
    console = Console(file=io.StringIO(), width=60)
    console.print(results_table(list(rows.values()), {}))
    assert "hf-dflash" in console.file.getvalue()


def test_transformers_dflash_lends_embedding_and_head(folders, tmp_path):
    save_dflash(tiny_network(has_head=True), tmp_path / "own")
    reference = load_hugging_face(folders[0], "float32", "cpu")
    with pytest.raises(InputError, match="has its own"):
        build_methods(
            ["hf-dflash"], load(folders[0], "none"), reference, Drafting((str(tmp_path / "own"),)), lambda drafter: {}
        )
