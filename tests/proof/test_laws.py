"""The proof passes where nothing is wrong, and names the law that a planted fault breaks."""

from dataclasses import replace

import pytest
import torch

import paceline.choice
import paceline.decode
import paceline.target.hugging_face as hugging_face
from paceline.acceptance import Accepted, match
from paceline.decode import Parts
from paceline.kv_cache import SlotCache
from paceline.policies.fixed import FixedPolicy
from paceline.proof.laws import LAWS
from paceline.proof.subject import Subject
from paceline.target.masks import tree_mask
from tiny_models import RandomTreeDrafter, tiny_target

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7], [2, 2]]


def subject(dtype=torch.float64, vocabulary=40):
    target = tiny_target("llama", vocab_size=vocabulary)
    if dtype != torch.float64:
        target = hugging_face.HuggingFaceTarget(target.model.to(dtype), "tiny")
    drafters = {"tree": RandomTreeDrafter(vocabulary, 1), "chain": RandomTreeDrafter(vocabulary, 2, chain=True)}
    drafted = {name: Parts(target, drafter, FixedPolicy(5, 12)) for name, drafter in drafters.items()}
    prompts = [[token % vocabulary for token in prompt] for prompt in PROMPTS]
    return Subject(target, drafted, prompts, 14)


def first_broken(found_on):
    return next((law.name for law in LAWS if not law.check(found_on).holds), None)


SLOW = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("dtype", [torch.float64, *SLOW], ids=str)
def test_every_law_holds(dtype):
    assert first_broken(subject(dtype)) is None


def test_a_mask_that_is_off_by_one_breaks_the_law_of_the_mask(monkeypatch):
    def shifted(visible, *others):
        return tree_mask(visible.roll(1, -1) | torch.eye(visible.shape[-1], dtype=torch.bool), *others)

    monkeypatch.setattr(hugging_face, "tree_mask", shifted)
    assert first_broken(subject()) == "mask"


def test_a_wrong_position_breaks_the_law_of_the_position(monkeypatch):
    right = hugging_face.HuggingFaceTarget.verify

    def misplaced(self, cache, trees, feature_layers=()):
        return right(self, cache, replace(trees, depths=trees.depths.clamp(max=1)), feature_layers)

    monkeypatch.setattr(hugging_face.HuggingFaceTarget, "verify", misplaced)
    assert first_broken(subject()) == "position"


def test_a_rejected_nodes_keys_and_values_break_the_law_of_the_cache(monkeypatch):
    right = SlotCache.keep

    def wrong(self, paths):
        right(self, [[*path[:-1], path[-1] - 1] if path else [] for path in paths])

    monkeypatch.setattr(SlotCache, "keep", wrong)
    assert first_broken(subject()) == "cache"


def test_a_bonus_from_the_wrong_node_breaks_the_law_of_the_bonus(monkeypatch):
    def wrong(trees, target_tokens):
        accepted = match(trees, target_tokens)
        tokens = [[*t[:-1], int(target_tokens[i, 0])] for i, t in enumerate(accepted.tokens)]
        return Accepted(accepted.paths, tokens)

    monkeypatch.setattr(paceline.decode, "match", wrong)
    assert first_broken(subject()) == "bonus"


@pytest.mark.slow
def test_noise_of_the_wrong_position_breaks_the_laws_of_sampled_texts_only(monkeypatch):
    right = paceline.decode.choose_tokens

    def wrong(sequences, trees, logits):
        return right(sequences, replace(trees, depths=trees.depths * 2), logits)

    monkeypatch.setattr(paceline.decode, "choose_tokens", wrong)
    assert first_broken(subject()) == "sampled"


@pytest.mark.slow
def test_a_path_that_is_cut_short_breaks_the_law_of_the_tree_and_no_text(monkeypatch):
    def lazy(trees, target_tokens):
        accepted = match(trees, target_tokens)
        return Accepted([path[:-1] for path in accepted.paths], [t[: max(1, len(t) - 1)] for t in accepted.tokens])

    monkeypatch.setattr(paceline.decode, "match", lazy)
    assert first_broken(subject()) == "tree"


@pytest.mark.slow
def test_a_budget_of_a_neighbour_that_leaks_breaks_the_law_of_the_batch(monkeypatch):
    right = paceline.decode.choose_tokens

    def leaking(sequences, trees, logits):
        tokens = right(sequences, trees, logits)
        return tokens if len(sequences) == 1 else (tokens + 1) % logits.shape[-1]

    monkeypatch.setattr(paceline.decode, "choose_tokens", leaking)
    assert first_broken(subject()) == "batch"


@pytest.mark.slow
def test_penalties_by_the_wrong_prefix_break_the_law_of_the_parameters(monkeypatch):
    right = paceline.choice.edit_tree

    def pathless(logits, tokens, visible, *others):
        return right(logits, tokens, torch.zeros_like(visible), *others)

    monkeypatch.setattr(paceline.choice, "edit_tree", pathless)
    assert first_broken(subject(vocabulary=13)) == "parameters"  # where much is accepted
