"""What a user may hand to `load`, and the sentence that comes back when it cannot be used."""

import json
import shutil
import warnings

import pytest
import torch
from transformers import AutoTokenizer

from paceline.adaptation.settings import AdaptationSettings
from paceline.adaptation.task import DFlashTask, Eagle3Task, SpecBlockTask
from paceline.checkpoints.eagle3 import save_eagle3
from paceline.checkpoints.specblock import save_specblock
from paceline.checkpoints.z_lab import save_dflash
from paceline.errors import CheckpointError, InputError
from paceline.loading import load
from paceline.policies.base import Plan
from paceline.provenance import provenance
from paceline.sources import template_digest
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_eagle3 import tiny_eagle3
from tiny_folder import TEMPLATE, write_tiny_folder
from tiny_specblock import tiny_specblock


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny target on disk: 50 words, 4 layers."""
    return write_tiny_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    path = tmp_path_factory.mktemp("drafters") / "dflash"
    save_dflash(tiny_network(), path)
    return path


def test_a_target_without_a_drafter_uses_prompt_lookup(folder):
    assert load(str(folder)).drafter.name == "prompt_lookup"
    assert load(str(folder), "none").drafter is None


def test_text_is_the_same_with_every_drafter_and_streams(folder, drafter):
    settings = GenerationSettings(max_tokens=10)
    models = [load(str(folder), name) for name in ("none", "prompt_lookup", str(drafter))]
    models.append(load(str(folder), str(drafter), tree="chain", block_size=3, tree_budget=2))
    answers = [model.generate("w1 w2 w3", settings) for model in models]
    assert len({a.tokens for a in answers}) == 1
    pieces = list(models[2].stream("w1 w2 w3", settings))
    assert "".join(p.text for p in pieces) == answers[0].text


def test_a_specblock_drafter_is_known_by_its_checkpoint_and_shaped_as_asked(folder, tmp_path):
    save_specblock(tiny_specblock(), tmp_path / "drafter", {"chat_template_sha256": template_digest(TEMPLATE)})
    name, settings = str(tmp_path / "drafter"), GenerationSettings(max_tokens=12)
    plain = load(str(folder), "none").generate("w1 w2 w3", settings)
    shapes = [{}, {"tree": "top_k"}, {"tree": "chain", "block_size": 3}, {"siblings": (2, 3, 4, 1), "starts": 2}]
    for options in (*shapes, {"lookup": False, "tree_budget": 5}, {"policy": "fixed:7:3"}):
        model = load(str(folder), name, **options)
        assert model.generate("w1 w2 w3", settings).tokens == plain.tokens
    assert load(str(folder), name, lookup=False).drafter.name == "specblock"
    assert load(str(folder), name).drafter.name == "specblock+prompt_lookup"
    assert load(str(folder), name, lookup=False, siblings=(2, 3, 4, 1)).drafter.tree.siblings == (2, 3, 4, 1)


def test_an_eagle3_drafter_is_known_by_its_checkpoint(folder, tmp_path):
    save_eagle3(tiny_eagle3(), tmp_path / "drafter", {"chat_template_sha256": template_digest(TEMPLATE)})
    name, settings = str(tmp_path / "drafter"), GenerationSettings(max_tokens=12)
    plain = load(str(folder), "none").generate("w1 w2 w3", settings)
    for options in ({}, {"tree": "top_k"}, {"tree": "chain"}, {"lookup": False, "tree_budget": 5, "block_size": 3}):
        model = load(str(folder), name, **options)
        assert model.generate("w1 w2 w3", settings).tokens == plain.tokens
    assert model.drafter.name == "eagle3" and load(str(folder), name).drafter.name == "eagle3+prompt_lookup"


@pytest.mark.parametrize(
    ("save", "make", "task"),
    [
        (save_dflash, tiny_network, DFlashTask),
        (save_specblock, tiny_specblock, SpecBlockTask),
        (save_eagle3, tiny_eagle3, Eagle3Task),
    ],
)
@pytest.mark.parametrize("lookup", [True, False])
def test_every_drafter_with_a_network_can_learn_and_is_measured_as_it_serves(
    folder, tmp_path, save, make, task, lookup
):
    save(make(), tmp_path / "drafter", {"chat_template_sha256": template_digest(TEMPLATE)})
    settings = AdaptationSettings(forced=True, whole_steps=1)
    model = load(str(folder), str(tmp_path / "drafter"), lookup=lookup, adapt=settings, block_size=3, tree_budget=2)
    assert type(model.adapter.task) is task and (model.adapter.task.beside is not None) == lookup
    assert model.adapter.learner.plan == Plan(3, 2)
    plain = load(str(folder), "none")
    for number in range(6):
        prompt, asked = f"w{number} w2 w3", GenerationSettings(max_tokens=12, ignore_eos=True)
        assert model.generate(prompt, asked).tokens == plain.generate(prompt, asked).tokens
    assert model.adapter.updates


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup", None])
def test_what_has_no_network_cannot_learn(folder, drafter, monkeypatch):
    monkeypatch.setattr("paceline.loading.load_target", lambda *args: pytest.fail("a target was loaded"))
    with pytest.raises(InputError, match="has none"):
        load(str(folder), drafter, adapt=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"siblings": (1, 2, 11, 0)}, "siblings is"),
        ({"siblings": (0, 0, 0, 0)}, "not all 0"),
        ({"starts": 2, "tree": "chain"}, "a chain has one"),
        ({"starts": 0}, "num_starts is 0"),
        ({"tree": "top_k", "siblings": (1, 2, 3, 0)}, "does not ask it"),
        ({"drafter": "prompt_lookup", "starts": 2}, "but 'prompt_lookup' is none"),
        ({"drafter": "none", "siblings": (1, 2, 3, 0)}, "but 'none' is none"),
    ],
)
def test_shapes_of_trees_that_cannot_be_are_refused(folder, tmp_path, options, message):
    save_specblock(tiny_specblock(), tmp_path / "drafter")
    with pytest.raises(InputError, match=message):
        load(str(folder), **{"drafter": str(tmp_path / "drafter")} | options)


def test_prompts_go_through_the_chat_template_unless_raw(folder):
    model = load(str(folder), "none")
    assert model.encode("w0") == [1, 3, 2]
    assert model.encode([{"role": "user", "content": "w1"}]) == [1, 4, 2]
    assert model.encode("w0", raw=True) == [3]
    with pytest.raises(InputError, match="raw prompts are plain text"):
        model.encode([{"role": "user", "content": "w1"}], raw=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "./nowhere"}, "has no config.json"),
        ({"drafter": "./nowhere"}, "nowhere"),
        ({"drafter": "no-drafter"}, "no-drafter"),
        ({"tree": "oak"}, "must be one of chain, top_k, best_first"),
        ({"tree_budget": 0}, "tree_budget is 0"),
        ({"block_size": 1}, "block_size is 1"),
        ({"dtype": "int3"}, "must be one of float32, bfloat16, float16"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(folder, options, message):
    with pytest.raises(InputError, match=message) as caught:
        load(**{"target": str(folder), **options})
    assert "\n" not in str(caught.value)


def test_a_corrupt_target_is_refused_in_one_sentence(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(CheckpointError, match="cannot be loaded") as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_drafter_of_another_target_is_refused(folder, tmp_path):
    save_dflash(tiny_network(vocab_size=60), tmp_path / "other")
    with pytest.raises(CheckpointError, match="60"):
        load(str(folder), str(tmp_path / "other"))


def test_an_encoder_decoder_target_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    with pytest.raises(InputError, match="encoder-decoder"):
        load(str(tmp_path))


def test_the_thinking_mode_is_the_chat_templates_and_is_refused_where_there_is_none(folder, tmp_path):
    with pytest.raises(InputError, match="has no enable_thinking"):
        load(str(folder), "none", thinking=False)
    thinks = tmp_path / "thinks"
    shutil.copytree(folder, thinks)
    tokenizer = AutoTokenizer.from_pretrained(thinks)
    tokenizer.chat_template = TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %} w7{% endif %}"
    tokenizer.save_pretrained(thinks)
    own, on, off = (load(str(thinks), "none", thinking=mode) for mode in (None, True, False))
    assert own.encode("w1") == on.encode("w1") == [*off.encode("w1"), on.tokenizer.convert_tokens_to_ids("w7")]
    modes = [provenance(m.target.info, m.tokenizer, [], m.thinking)["thinking_mode"] for m in (own, on, off)]
    assert modes == ["as the template has it", "on", "off"]


def test_a_drafter_trained_with_another_chat_template_warns_and_works(folder, tmp_path):
    for name, template in (("same", TEMPLATE), ("other", TEMPLATE + "!")):
        save_dflash(tiny_network(), tmp_path / name, extra={"chat_template_sha256": template_digest(template)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(str(folder), str(tmp_path / "same"))
    with pytest.warns(UserWarning, match="another chat template"):
        load(str(folder), str(tmp_path / "other"))


def test_threads_are_set_when_asked_for(folder):
    before = torch.get_num_threads()
    try:
        load(str(folder), "none", threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_tree_is_refused_where_nothing_is_drafted():
    with pytest.raises(InputError, match="tree 'chain' says how a draft grows"):
        load(drafter="none", tree="chain")
