"""A language model as drafter: its trees against the rule written out, its batches, its vocabulary, and the text."""

import json

import pytest
import torch

from drafted_alone import same
from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.cli import main
from paceline.decode import Parts
from paceline.drafter_loading import load_drafter
from paceline.drafters.base import DraftRequest
from paceline.drafters.small_model import SMALL_MODEL_TREES, SmallModelDrafter, SmallModelTree
from paceline.engine import Engine
from paceline.errors import CheckpointError
from paceline.loading import load
from paceline.metrics import StageClock
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings
from tiny_folder import write_tiny_folder
from tiny_models import tiny_target

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
LONG = (TOKENS * 4)[:29]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", vocab_size=50, num_hidden_layers=4)


def new_drafter(tree=None, num_words=50, max_context=200, family="llama", num_readable=50):
    model = tiny_target(family, vocab_size=50, seed=5)
    return SmallModelDrafter(model, num_words, num_readable, max_context, tree or SmallModelTree(3, 2, 3))


def draft(drafter, *texts, size=4, budget=9):
    state = drafter.new_state(len(texts), 64, torch.device("cpu"))
    return drafter.draft(state, [DraftRequest(text, size, budget, 20) for text in texts], StageClock())


def log_probs_after(drafter, tokens):
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        return drafter.model.model(ids).logits[0, -1, : drafter.num_words].float().log_softmax(-1)


def by_the_rule(drafter, tokens, budget):
    """{path: log-prob}: of every level's likeliest nodes the likeliest children; of all of them the likeliest."""
    found, frontier = {}, [((), 0.0)]
    for _ in range(drafter.tree.depth):
        level = {}
        for path, before in frontier:
            top = log_probs_after(drafter, [*tokens, *path]).topk(drafter.tree.width)
            level |= {(*path, t): before + v for t, v in zip(top.indices.tolist(), top.values.tolist(), strict=True)}
        found |= level
        frontier = sorted(level.items(), key=lambda item: -item[1])[: drafter.tree.num_starts]
    return dict(sorted(found.items(), key=lambda item: -item[1])[:budget])


def paths_of(tree):
    paths = {}
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True), start=1):
        paths[node] = (*paths.get(parent, ()), token)
    return {paths[node]: value for node, value in enumerate(tree.log_probs.tolist(), start=1)}


@pytest.mark.parametrize("family", ["llama", "gemma2_sliding"])
@pytest.mark.parametrize(
    ("tree", "budget"), [(SmallModelTree(3, 2, 3), 4), (SmallModelTree(3, 2, 3), 15), (SmallModelTree(3), 3)]
)
@pytest.mark.parametrize("words", [50, 40])
def test_the_tree_is_that_of_the_rule(tree, budget, words, family):
    drafter = new_drafter(tree, num_words=words, family=family)
    for text in (TOKENS, LONG, TOKENS[:1]):
        assert paths_of(draft(drafter, text, budget=budget)[0]) == pytest.approx(by_the_rule(drafter, text, budget))


@pytest.mark.parametrize("tree", [SmallModelTree(3, 2, 3), SmallModelTree(3)])
def test_a_row_of_a_batch_drafts_as_it_does_alone_and_goes_on_from_what_it_read(tree):
    drafter, clock = new_drafter(tree), StageClock()
    texts, more = [TOKENS, LONG, TOKENS[:3]], [[7, 30], [1], [2, 2, 8, 41]]
    state = drafter.new_state(3, 64, torch.device("cpu"))
    for continued in (texts, [a + b for a, b in zip(texts, more, strict=True)]):
        requests = [DraftRequest(text, 4, 9, 20) for text in continued]
        requests[1] = DraftRequest(continued[1], 4, 9 if continued is texts else 0, 20)
        trees = drafter.draft(state, requests, clock)
        for text, request, drafted in zip(continued, requests, trees, strict=True):
            drafted.validate()
            assert same(drafted, draft(drafter, text, budget=request.tree_budget)[0])
    assert state.cache.lengths == [len(TOKENS) + 2, len(LONG), 3 + 4]


def test_what_it_cannot_read_is_not_drafted_for():
    assert draft(new_drafter(max_context=8), TOKENS)[0].num_nodes == 0
    assert draft(new_drafter(max_context=9), TOKENS)[0].depths().max() == 1
    assert draft(new_drafter(num_readable=9), TOKENS)[0].num_nodes == 0
    assert draft(new_drafter(num_readable=10), TOKENS)[0].num_nodes > 0


@pytest.mark.parametrize("tree", sorted(SMALL_MODEL_TREES))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding_in_a_batch_that_changes(target, tree, temperature):
    drafter = new_drafter(SMALL_MODEL_TREES[tree])
    engine = Engine(Parts(target, drafter, FixedPolicy(6, 9)), max_batch=2)
    prompts = [LONG[:n] for n in (1, 28, 6)]
    settings = [
        GenerationSettings(max_tokens=5 + 7 * i, temperature=temperature, seed=i, ignore_eos=True) for i in range(3)
    ]
    requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    for request, prompt, setting in zip(requests, prompts, settings, strict=True):
        assert request.tokens == plain_decode(target, prompt, setting)
    assert sum(r.statistics.drafted for r in requests) > 0


def test_a_model_that_is_the_target_drafts_what_it_says(target):
    drafter = SmallModelDrafter(target, 50, 50, 200, SmallModelTree(4))
    engine = Engine(Parts(target, drafter, FixedPolicy(5, 4)), max_batch=1)
    request = engine.submit(TOKENS, GenerationSettings(max_tokens=31, ignore_eos=True))
    engine.run()
    assert request.statistics.acceptance_length == 5.0
    again = engine.submit(TOKENS, GenerationSettings(max_tokens=31, ignore_eos=True))
    engine.run()
    assert again.tokens == request.tokens and again.statistics.acceptance_length == 5.0


def test_a_language_model_is_a_drafter_where_its_words_are_the_targets(tmp_path, capsys):
    folder, other = write_tiny_folder(tmp_path / "target"), write_tiny_folder(tmp_path / "other")
    assert dialect_of(folder) is Dialect.CAUSAL_LM
    model = load(str(folder), str(other), dtype="float32", tree="chain")
    assert isinstance(model.drafter, SmallModelDrafter)
    answer = model.generate("w1 w2 w3", GenerationSettings(max_tokens=12, ignore_eos=True))
    assert answer.statistics.acceptance_length > 5  # the two folders hold the same model
    assert main(["generate", "w1 w2", "--target", str(folder), "--drafter", str(other), "--max-tokens", "4"]) == 0
    words = json.loads((other / "tokenizer.json").read_text())
    words["model"]["vocab"] |= {"w1": words["model"]["vocab"]["w2"], "w2": words["model"]["vocab"]["w1"]}
    (other / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(CheckpointError, match="2 tokens are other words"):
        load(str(folder), str(other))
    capsys.readouterr()
    assert main(["doctor", str(other), "--target", str(folder)]) == 2
    assert "whole language model" in capsys.readouterr().err


def test_no_tokenizer_is_a_mistake_of_ours(tmp_path, target):
    folder = write_tiny_folder(tmp_path / "target")
    with pytest.raises(AssertionError):
        load_drafter(str(folder), target)
