"""Edits of the logits: the references' semantics, and each node of a tree by its own prefix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from paceline.penalties import TokenCounts, edit_one, edit_tree
from paceline.tree import pack
from paceline.types import GenerationSettings
from random_trees import random_tree

VOCABULARY = 6
PROMPT, ANSWER = [1, 1, 4], [2, 2, 5]


def logits(rows=1, seed=0):
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def test_the_repetition_penalty_is_hugging_faces():
    ids = torch.tensor([PROMPT + ANSWER])
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits().clone())
    found = edit_one(logits()[0], PROMPT, ANSWER, GenerationSettings(repetition_penalty=1.7), ())
    torch.testing.assert_close(found, expected[0])


def test_logit_bias_is_hugging_faces_sequence_bias_of_single_tokens():
    expected = SequenceBiasLogitsProcessor({(3,): -2.5, (0,): 4.0})(torch.tensor([PROMPT]), logits().clone())
    found = edit_one(logits()[0], PROMPT, [], GenerationSettings(logit_bias={3: -2.5, 0: 4.0}), ())
    torch.testing.assert_close(found, expected[0])


@pytest.mark.parametrize("length", [0, 2, 3])
def test_min_tokens_is_hugging_faces_min_new_tokens(length):
    ids = torch.tensor([PROMPT + ANSWER[:length]])
    expected = MinNewTokensLengthLogitsProcessor(len(PROMPT), 3, [0, 5])(ids, logits().clone())
    found = edit_one(logits()[0], PROMPT, ANSWER[:length], GenerationSettings(min_tokens=3), {0, 5})
    torch.testing.assert_close(found, expected[0])


def test_frequency_and_presence_penalties_are_openais_and_count_the_answer_alone():
    before = logits()[0]
    found = edit_one(before, PROMPT, ANSWER, GenerationSettings(frequency_penalty=0.5, presence_penalty=0.25), ())
    expected = before - 0.5 * torch.tensor([0, 0, 2, 0, 0, 1]) - 0.25 * torch.tensor([0, 0, 1, 0, 0, 1])
    torch.testing.assert_close(found, expected)


any_settings = st.builds(
    GenerationSettings,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.4]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-5, 5, width=32), max_size=3),
    min_tokens=st.integers(0, 8),
)


@given(any_settings, st.integers(0, 10**6), st.integers(0, 14), st.lists(st.integers(0, VOCABULARY - 1), min_size=1))
def test_every_node_of_a_tree_is_edited_by_its_own_prefix(settings, seed, size, answer):
    tree = random_tree(seed, size, VOCABULARY)
    batch = pack([tree], torch.tensor([answer[-1]]))
    raw = logits(1 + tree.num_nodes, seed)
    counts = TokenCounts(PROMPT, VOCABULARY, torch.device("cpu"))
    counts.add(answer)
    edited = edit_tree(raw, batch.tokens[0], batch.visible[0], counts, settings, {0, 3})
    for node in range(1 + tree.num_nodes):
        path = [int(batch.tokens[0, i]) for i in range(1, node + 1) if batch.visible[0, node, i]]
        torch.testing.assert_close(edited[node], edit_one(raw[node], PROMPT, [*answer, *path], settings, {0, 3}))


def test_the_logits_that_came_stay_as_they_are():
    raw = logits()
    before = raw.clone()
    counts = TokenCounts(PROMPT, VOCABULARY, torch.device("cpu"))
    settings = GenerationSettings(logit_bias={1: 3.0}, repetition_penalty=2.0, min_tokens=4)
    edit_tree(raw, torch.tensor([4]), torch.ones(1, 1, dtype=torch.bool), counts, settings, {0})
    assert torch.equal(raw, before)
