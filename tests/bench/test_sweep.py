"""Sweeps: which settings can take several values, and what becomes of methods and requests."""

import pytest

from paceline.bench.method import Answer, Method
from paceline.bench.methods import sizes_used
from paceline.bench.sized import sized
from paceline.bench.sweep import Sweep, parse_sweeps, requests
from paceline.errors import InputError
from paceline.types import GenerationSettings


class Asked(Method):
    name = "ddtree"

    def __init__(self):
        self.settings = {"policy": "fixed", "block_size": 8, "tree_budget": 7}
        self.seen = []

    def answer(self, prompt, settings):
        self.seen.append((settings.block_size, settings.tree_budget))
        return Answer((1,), 1.0, None)


def test_a_method_is_run_at_every_combination_of_the_sizes_that_it_uses():
    sweeps = parse_sweeps(["tree-budget=4,8", "block_size=6,8", "temperature=0,1"])
    method = Asked()
    found = sized(method, ("block_size", "tree_budget"), sweeps)
    assert [m.name for m in found] == [
        f"ddtree tree_budget={nodes} block_size={size}" for nodes in (4, 8) for size in (6, 8)
    ]
    for each in found:
        each.answer([1], GenerationSettings())
    assert method.seen == [(6, 4), (8, 4), (6, 8), (8, 8)]
    assert found[0].settings == {"policy": "fixed", "block_size": 6, "tree_budget": 4}
    assert [m.name for m in sized(method, ("block_size",), sweeps)] == ["ddtree block_size=6", "ddtree block_size=8"]
    assert {m.family for m in found} == {"ddtree"} and found[0].sizes == {"tree_budget": 4, "block_size": 6}
    assert sized(method, (), sweeps) == [method]


def test_a_block_that_is_swept_alone_has_nodes_for_a_whole_chain():
    """Its own are 7."""
    for uses, nodes in ((("block_size",), [3, 15]), (("block_size", "tree_budget"), [7, 15])):
        method = Asked()
        found = sized(method, uses, parse_sweeps(["block_size=4,16"]))
        for each in found:
            each.answer([1], GenerationSettings())
        assert [m.settings["tree_budget"] for m in found] == [budget for _, budget in method.seen] == nodes


def test_requests_take_every_combination_of_what_is_asked():
    base = GenerationSettings(max_tokens=9)
    assert requests(base, []) == [(base, {"temperature": 0.0, "max_tokens": 9.0})]
    found = requests(base, [Sweep("temperature", (0.0, 1.0)), Sweep("top_k", (0, 5)), Sweep("block_size", (4,))])
    assert [(s.temperature, s.top_k, s.block_size) for s, _ in found] == [
        (0.0, 0, None), (0.0, 5, None), (1.0, 0, None), (1.0, 5, None)
    ]  # fmt: skip
    assert found[-1][1] == {"temperature": 1.0, "max_tokens": 9.0, "top_k": 5.0}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("plain", ()),
        ("hf", ()),
        ("prompt_lookup", ("block_size",)),
        ("dflash", ("block_size",)),
        ("hf-dflash", ("block_size",)),
        ("ddtree", ("block_size", "tree_budget")),
        ("eagle3-static", ("block_size", "tree_budget")),
        ("ddtree-adapt", ()),
    ],
)
def test_methods_are_asked_for_sizes_that_they_have(name, sizes):
    assert sizes_used(name) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stop=a", "must be NAME=VALUE"),
        ("drafter=a,b", "run once for each"),
        ("block_size=", "must be whole numbers"),
    ],
)
def test_what_cannot_be_swept_is_one_sentence(text, message):
    with pytest.raises(InputError, match=message):
        parse_sweeps([text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_tokens=0", "max_tokens is 0"),
        ("temperature=nan", "temperature is nan"),
        ("min_tokens=9", "min_tokens is 9"),
    ],
)
def test_what_requests_are_asked_is_checked_beside_their_other_settings(text, message):
    with pytest.raises(InputError, match=message):
        requests(GenerationSettings(max_tokens=8), parse_sweeps([text]))
    assert len(requests(GenerationSettings(max_tokens=1024), parse_sweeps(["min_tokens=9,512"]))) == 2
