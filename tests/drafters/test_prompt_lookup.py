import pytest
import torch

from paceline.drafters.base import DraftRequest
from paceline.drafters.prompt_lookup import PromptLookupDrafter
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
