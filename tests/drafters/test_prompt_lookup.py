import pytest
import torch

from paceline.drafters.base import DraftRequest
from paceline.drafters.prompt_lookup import LONGEST, PromptLookupDrafter
from paceline.errors import InputError
from paceline.metrics import StageClock


def propose(tokens, block_size=8, tree_budget=7, max_depth=20, **options):
    drafter = PromptLookupDrafter(**options)
    state = drafter.new_state(1, 8, torch.device("cpu"))
    (tree,) = drafter.draft(state, [DraftRequest(tokens, block_size, tree_budget, max_depth)], StageClock())
    tree.validate()
    return tree.tokens.tolist()


def test_it_copies_what_followed_the_longest_repeated_suffix():
    assert propose([1, 2, 3, 9, 9, 2, 3, 7, 1, 2, 3]) == [9, 9, 2, 3, 7, 1, 2]


def test_the_most_recent_occurrence_wins():
    assert propose([5, 1, 5, 2, 5]) == [2, 5]


def test_nothing_repeats_nothing_is_proposed():
    assert propose([1, 2, 3]) == []
    assert propose([1]) == []


def test_block_size_budget_and_depth_bound_the_chain():
    tokens = [1, 2, 3, 4, 5, 6, 1]
    assert len(propose(tokens, block_size=3)) == 2
    assert len(propose(tokens, tree_budget=1)) == 1
    assert len(propose(tokens, max_depth=4)) == 4
    assert propose(tokens, max_depth=0) == []


def test_short_suffixes_can_be_ruled_out():
    assert propose([1, 2, 3, 1], min_ngram=2) == []


def test_wrong_ngram_sizes_are_refused():
    with pytest.raises(InputError, match="2 to 1"):
        PromptLookupDrafter(max_ngram=1, min_ngram=2)


def test_the_longest_agreement_wins_over_a_more_recent_shorter_one():
    assert propose([1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4])[0] == 9
    assert propose([1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4], max_ngram=2)[0] == 8


def rates(sequence, prompt_length=1):
    """Hit rates after drafting before every token of a sequence."""
    drafter = PromptLookupDrafter()
    state = drafter.new_state(1, 8, torch.device("cpu"))
    for length in range(prompt_length, len(sequence) + 1):
        drafter.draft(state, [DraftRequest(sequence[:length], 8, 7, 20)], StageClock())
    return state.row(0).hit_rates()


def test_trust_rises_where_copies_hold_and_falls_where_they_do_not():
    before = rates([1])
    repeating = rates([1, 2, 3, 4, 5, 6, 7, 8] * 6)
    assert repeating[LONGEST] > before[LONGEST] and (repeating >= before).all()
    misleading = rates([1, 5, 1, 6, 1, 7, 1, 8, 1, 9, 1, 10])
    assert misleading[1] < before[1]
    assert (misleading[2:] == before[2:]).all()


def test_log_probs_fall_along_the_copy_and_say_what_is_expected_of_it():
    drafter = PromptLookupDrafter()
    state = drafter.new_state(1, 8, torch.device("cpu"))
    (tree,) = drafter.draft(state, [DraftRequest([1, 2, 3, 4, 1, 2], 8, 7, 20)], StageClock())
    expected = torch.tensor(state.row(0).hit_rates()[[2, 3, 4, 5]]).log().cumsum(0)
    torch.testing.assert_close(tree.log_probs.double(), expected, atol=1e-6, rtol=1e-6)


def test_rows_move_with_what_they_know_and_a_cleared_row_knows_nothing():
    drafter = PromptLookupDrafter()
    state = drafter.new_state(2, 8, torch.device("cpu"))
    drafter.draft(state, [DraftRequest([1, 2, 1], 8, 7, 20), DraftRequest([3, 4, 3], 8, 7, 20)], StageClock())
    state.move(1, 0)
    state.clear(1)
    (tree,) = drafter.draft(state, [DraftRequest([3, 4, 3, 4], 8, 7, 20)], StageClock())
    assert tree.tokens.tolist() == [3, 4]
    assert state.row(0).hit_rates()[1] > rates([1])[1]
    assert (state.row(1).hit_rates() == rates([1])).all()


def test_sequences_longer_than_the_first_buffer_are_read_whole():
    tokens = [*range(1, 700), 1, 2]
    assert propose(tokens)[:3] == [3, 4, 5]
