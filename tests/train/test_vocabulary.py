"""The draft vocabulary holds what responses are made of, and its two maps agree."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.train.data import open_dataset
from paceline.train.shards import write_shard
from paceline.train.vocabulary import choose_vocabulary, count_response_tokens
from tiny_training import VOCABULARY, conversation


def test_the_most_frequent_tokens_are_chosen_and_the_end_is_always_among_them():
    counts = torch.tensor([0, 5, 0, 9, 1, 7, 7])
    assert choose_vocabulary(counts, 3, always=[2]).target_ids().tolist() == [2, 3, 5]
    assert choose_vocabulary(counts, 3).target_ids().tolist() == [3, 5, 6]


def test_too_few_occurring_tokens_are_filled_up_from_the_lowest_id():
    counts = torch.tensor([0, 0, 4, 0, 0])
    assert choose_vocabulary(counts, 3).target_ids().tolist() == [0, 1, 2]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.data())
def test_the_two_maps_undo_each_other(counts, data):
    size = data.draw(st.integers(1, len(counts)))
    vocabulary = choose_vocabulary(torch.tensor(counts), size)
    assert len(vocabulary) == size == int(vocabulary.t2d.sum())
    ids = torch.arange(size)
    assert torch.equal(vocabulary.draft_ids()[ids + vocabulary.d2t[ids]], ids)
    assert torch.equal(vocabulary.draft_ids() >= 0, vocabulary.t2d)
    kept = torch.tensor(counts)[vocabulary.t2d]
    dropped = torch.tensor(counts)[~vocabulary.t2d]
    assert dropped.numel() == 0 or kept.min() >= dropped.max()


def test_only_response_tokens_are_counted(tmp_path):
    write_shard(tmp_path / "shard-0.safetensors", [conversation(12, 7, seed=5)])
    counts = count_response_tokens(open_dataset(tmp_path), VOCABULARY)
    assert counts.nonzero().flatten().tolist() == sorted(conversation(12, 7, seed=5).tokens[7:].tolist())
