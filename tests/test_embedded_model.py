"""The embedded model and its drafter, for real: token-exact against Hugging Face, and the demo as a user runs it."""

from pathlib import Path

import pytest
import torch

from paceline.adaptation.settings import AdaptationSettings
from paceline.cli import main
from paceline.decode import Parts
from paceline.drafter_loading import load_drafter
from paceline.embedded import DRAFTER_KINDS, embedded_drafter, embedded_policies
from paceline.engine import Engine
from paceline.loading import load, make_parts
from paceline.sources import load_tokenizer
from paceline.target_loading import load_hugging_face, load_target
from paceline.types import GenerationSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROMPTS = (Path(__file__).parent / "forty_prompts.txt").read_text("utf-8").splitlines()
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def target():
    return load_target(device="cpu")


@pytest.fixture(scope="module")
def expected():
    """(prompt tokens, Hugging Face's greedy continuation) of every prompt."""
    model, tokenizer = load_hugging_face(None, None, "cpu"), load_tokenizer(None)
    texts = []
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        with torch.inference_mode():
            output = model.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=NUM_TOKENS, do_sample=False
            )
        texts.append((list(ids), output[0, len(ids) :].tolist()))
    return texts


def _drafted(target, kind: str, tree: str) -> Parts:
    return make_parts(target, load_drafter(kind, target, tree))


@pytest.mark.parametrize("kind", ["dflash", "specblock"])
def test_greedy_text_equals_hugging_face_generate_alone(target, expected, kind):
    engine = Engine(_drafted(target, kind, "best_first"), max_batch=1)
    accepted = 0
    for prompt, tokens in expected:
        request = engine.submit(prompt, GenerationSettings(max_tokens=NUM_TOKENS))
        engine.run()
        assert request.tokens == tokens
        accepted += request.statistics.accepted
    assert accepted > 0


@pytest.mark.parametrize(("kind", "tree"), [("dflash", "chain"), *((kind, "best_first") for kind in DRAFTER_KINDS)])
def test_greedy_text_equals_hugging_face_generate_in_a_batch_that_changes(target, expected, kind, tree):
    engine = Engine(_drafted(target, kind, tree), max_batch=8)
    requests = [
        engine.submit(prompt, GenerationSettings(max_tokens=NUM_TOKENS - i % 8))
        for i, (prompt, _) in enumerate(expected)
    ]
    engine.run()
    for request, (_, tokens) in zip(requests, expected, strict=True):
        assert request.tokens == tokens[: request.settings.max_tokens]


def test_the_demo_shows_equal_texts_and_a_tree(capsys):
    assert main(["demo", "--max-tokens", "16"]) == 0
    shown = capsys.readouterr().out
    assert "All 20 texts are the same as plain decoding's" in shown
    assert "One round:" in shown and "✓" in shown


def test_a_drafter_that_learns_meanwhile_changes_no_text(expected):
    settings = AdaptationSettings(forced=True, whole_steps=1)
    model = load(drafter="specblock", adapt=settings, device="cpu")
    for prompt, tokens in expected[:8]:
        request = model.engine.submit(prompt, GenerationSettings(max_tokens=NUM_TOKENS))
        model.engine.run()
        assert request.tokens == tokens
    assert model.adapter.updates


def test_the_drafters_that_come_with_it_are_small():
    for kind in DRAFTER_KINDS:
        assert sum(f.stat().st_size for f in embedded_drafter(kind).iterdir()) < 16e6


@pytest.mark.parametrize("spec", ["blockpilot", "cost_aware", "joint"])
def test_the_policies_that_come_with_it_are_for_this_pair_and_change_no_text(expected, spec):
    model = load(policy=spec, device="cpu")
    policy = model.parts.policy
    if spec == "joint":
        assert policy.predictor is not None
    for prompt, tokens in expected[:8]:
        request = model.engine.submit(prompt, GenerationSettings(max_tokens=NUM_TOKENS))
        model.engine.run()
        assert request.tokens == tokens
    assert all(sum(f.stat().st_size for f in path.iterdir()) < 16e6 for path in embedded_policies().values())
    assert set(embedded_policies()) == {"best_size", "accepted"}
