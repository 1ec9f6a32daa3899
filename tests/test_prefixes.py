"""A second turn starts from what the first one left, and gives what a fresh start gives."""

import pytest
import torch

from paceline.decode import Parts
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.engine import Engine
from paceline.policies.fixed import FixedPolicy
from paceline.prefixes import KeptPrefix, PrefixStore
from paceline.tree import best_first
from paceline.types import GenerationSettings
from tiny_dflash import tiny_network
from tiny_models import tiny_target


@pytest.fixture(scope="module")
def parts():
    target = tiny_target("llama", vocab_size=50)
    network = tiny_network(target_layer_ids=(0, 2), num_target_layers=3)
    network.attach(target.embedding, target.head)
    drafter = DFlashDrafter(network.to(torch.float64), best_first)
    return Parts(target, MixtureDrafter(drafter, PromptLookupDrafter()), FixedPolicy(4, 6))


def ask(engine, prompt, **changes):
    request = engine.submit(prompt, GenerationSettings(**{"max_tokens": 12, **changes}))
    engine.run()
    return request


FIRST = [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_second_turn_reads_what_is_new_and_accepts_as_a_fresh_start_does(parts, temperature):
    engine = Engine(parts, num_prefixes=2)
    first = ask(engine, FIRST, temperature=temperature)
    second = [*FIRST, *first.tokens, 9, 8, 7]
    continued = ask(engine, second, temperature=temperature)
    fresh = ask(Engine(parts), second, temperature=temperature)
    assert continued.statistics.cached_tokens >= len(FIRST) + len(first.tokens) - 1
    assert fresh.statistics.cached_tokens == 0
    assert continued.tokens == fresh.tokens
    assert continued.statistics.accepted_by_position == fresh.statistics.accepted_by_position


def test_a_prompt_that_parts_in_the_middle_shares_what_comes_before(parts):
    engine = Engine(parts, num_prefixes=2)
    ask(engine, FIRST)
    other = [*FIRST[:4], 30, 31]
    found = ask(engine, other)
    assert found.statistics.cached_tokens == 4
    assert found.tokens == ask(Engine(parts), other).tokens


def test_the_same_prompt_again_still_reads_its_last_token(parts):
    engine = Engine(parts, num_prefixes=2)
    first = ask(engine, FIRST)
    again = ask(engine, FIRST)
    assert again.statistics.cached_tokens == len(FIRST) - 1
    assert again.tokens == first.tokens


def test_a_sequence_that_did_not_draft_serves_only_requests_that_do_not(parts):
    engine = Engine(parts, num_prefixes=2)
    ask(engine, FIRST, draft=False)
    assert ask(engine, FIRST).statistics.cached_tokens == 0
    assert ask(engine, FIRST, draft=False).statistics.cached_tokens == len(FIRST) - 1


def test_requests_together_in_a_batch_reuse_too(parts):
    engine = Engine(parts, max_batch=3, num_prefixes=4)
    turns = [[i, i + 1, i + 2] for i in range(4)]
    first = [engine.submit(p, GenerationSettings(max_tokens=4 + i)) for i, p in enumerate(turns)]
    engine.run()
    longer = [[*r.prompt, *r.tokens, 40 + i] for i, r in enumerate(first)]
    second = [engine.submit(p, GenerationSettings(max_tokens=6)) for p in longer]
    engine.run()
    assert all(r.statistics.cached_tokens > len(p) for r, p in zip(second, turns, strict=True))
    assert [r.tokens for r in second] == [ask(Engine(parts), p, max_tokens=6).tokens for p in longer]


def kept(*tokens, has_draft=True):
    return KeptPrefix(tokens, [torch.zeros(2)], [torch.zeros(2)], has_draft)


def test_the_store_keeps_the_last_few_and_a_continuation_replaces_what_it_continues():
    store = PrefixStore(2)
    store.keep(kept(1, 2))
    store.keep(kept(1, 2, 3))
    store.keep(kept(7, 8))
    assert store.find([1, 2, 9], drafts=True).length == 2
    store.keep(kept(5))  # 7, 8 was used longest ago
    assert store.find([7, 8, 9], drafts=True) is None
    assert store.find([1, 2, 3, 4], drafts=True).length == 3


def test_a_drafted_and_an_undrafted_sequence_of_the_same_tokens_live_side_by_side():
    store = PrefixStore(2)
    store.keep(kept(1, 2))
    store.keep(kept(1, 2, has_draft=False))
    for _ in range(2):
        assert store.find([1, 2, 3], drafts=True).prefix.has_draft
        assert store.find([1, 2, 3], drafts=False).length == 2


def test_a_store_without_room_keeps_nothing():
    store = PrefixStore(0)
    store.keep(kept(1, 2))
    assert store.find([1, 2, 3], drafts=False) is None
