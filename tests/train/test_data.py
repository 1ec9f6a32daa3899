"""The order of training is a function of (seed, sample); the split a function of the conversation."""

import pytest

from paceline.errors import InputError
from paceline.train.data import ShuffledOrder, fold_seed, open_dataset, split_by_hash
from paceline.train.shards import write_shard
from tiny_training import conversation, write_data


def texts(dataset):
    return [tuple(dataset[i].tokens.tolist()) for i in range(len(dataset))]


def test_every_epoch_is_another_permutation_of_everything():
    order = ShuffledOrder(10, seed=3)
    first, second = ([order.sample(i) for i in range(e * 10, e * 10 + 10)] for e in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_sample_does_not_depend_on_what_was_asked_before():
    in_order = ShuffledOrder(7, seed=1)
    stream = [in_order.sample(i) for i in range(30)]
    assert [ShuffledOrder(7, seed=1).sample(i) for i in (29, 3, 15)] == [stream[i] for i in (29, 3, 15)]
    assert stream != [ShuffledOrder(7, seed=2).sample(i) for i in range(30)]


def test_seeds_that_differ_anywhere_fold_to_different_seeds():
    seeds = {fold_seed(a, b) for a in range(20) for b in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_two_sides_share_no_text_and_together_are_everything(tmp_path):
    dataset = open_dataset(write_data(tmp_path, num_shards=3))
    training, held_out = split_by_hash(dataset, 0.3)
    assert not set(texts(training)) & set(texts(held_out))
    assert sorted(texts(training) + texts(held_out)) == sorted(texts(dataset))


def test_shards_added_later_move_no_conversation_to_the_other_side(tmp_path):
    _, before = split_by_hash(open_dataset(write_data(tmp_path)), 0.3)
    write_shard(tmp_path / "shard-00009.safetensors", [conversation(30 + i, seed=70 + i) for i in range(9)])
    _, after = split_by_hash(open_dataset(tmp_path), 0.3)
    assert set(texts(before)) <= set(texts(after))


def test_named_shards_are_opened_and_no_others(tmp_path):
    write_data(tmp_path, num_shards=3, per_shard=4)
    assert len(open_dataset(tmp_path, ["shard-00001.safetensors"])) == 4


def test_response_tokens_are_counted_from_the_first_token_of_the_response_on(tmp_path):
    write_shard(tmp_path / "shard-0.safetensors", [conversation(9, 4, seed=1), conversation(15, 6, seed=2)])
    assert open_dataset(tmp_path).num_response_tokens() == 5 + 9


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no shard-\*"):
        open_dataset(tmp_path)


def test_a_split_with_an_empty_side_is_refused(tmp_path):
    with pytest.raises(InputError, match="held-out side"):
        split_by_hash(open_dataset(write_data(tmp_path, 1, 3)), 1e-9)


def test_shards_of_different_taps_are_refused(tmp_path):
    write_data(tmp_path, 1, 2)
    wide = conversation(12)
    narrow = type(wide)(wide.tokens, 6, wide.features[:, :16], wide.top_ids, wide.top_log_probs)
    write_shard(tmp_path / "shard-9.safetensors", [narrow])
    with pytest.raises(InputError, match="different widths"):
        open_dataset(tmp_path)
