"""Everything that a request may ask holds with drafting as without it."""

import random

import pytest
import torch

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.errors import InputError
from paceline.noise import sample_seed
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.types import GenerationSettings
from tiny_models import RandomTreeDrafter, tiny_target

VOCABULARY = 12


def random_settings(rng: random.Random) -> GenerationSettings:
    """Any combination of what a request may ask."""
    max_tokens = rng.randint(1, 16)
    return GenerationSettings(
        max_tokens=max_tokens,
        temperature=rng.choice([0.0, 0.7, 1.3]),
        top_k=rng.choice([0, 5]),
        top_p=rng.choice([1.0, 0.8]),
        min_p=rng.choice([0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        presence_penalty=rng.choice([0.0, 0.6]),
        frequency_penalty=rng.choice([0.0, 0.3]),
        logit_bias=rng.choice([{}, {3: -2.0, 7: 1.5}]),
        seed=rng.randrange(1000),
        stop_token_ids=rng.choice([(), (5,), (5, 8)]),
        min_tokens=rng.randint(0, max_tokens),
        ignore_eos=rng.random() < 0.3,
        logprobs=rng.choice([None, 0, 3]),
        draft=rng.random() < 0.9,
    )


def target():
    return tiny_target("llama", vocab_size=VOCABULARY, eos_token_id=2)


def decode(target, prompts, settings, seed=0, max_batch=3, drafts=True):
    parts = Parts(target, RandomTreeDrafter(VOCABULARY, seed), FixedPolicy(5, 12)) if drafts else Parts(target)
    engine = Engine(parts, max_batch=max_batch)
    requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
    engine.run()
    return requests


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_plain_decodings_whatever_is_asked(seed):
    rng = random.Random(seed)
    model = target()
    settings = [random_settings(rng) for _ in range(16)]
    prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 9))] for _ in settings]
    requests = decode(model, prompts, settings, seed)
    for request, prompt, asked in zip(requests, prompts, settings, strict=True):
        assert request.tokens == plain_decode(model, prompt, asked), asked
    assert sum(r.statistics.accepted for r in requests) > 0


def test_penalties_change_the_text_so_that_the_test_above_shows_something():
    model = target()
    texts = [
        plain_decode(model, [1, 2, 3], GenerationSettings(max_tokens=14, ignore_eos=True, **changes))
        for changes in ({}, {"repetition_penalty": 1.5}, {"frequency_penalty": 2.0}, {"presence_penalty": 3.0})
    ]
    assert all(text != texts[0] for text in texts[1:])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_log_probabilities_are_one_for_each_token_and_plain_decodings(temperature):
    model = target()
    asked = GenerationSettings(
        max_tokens=12, temperature=temperature, top_k=6, frequency_penalty=0.4, logprobs=4, seed=3, ignore_eos=True
    )
    prompts = [[1, 2, 3], [4], [7, 7, 8]]
    drafted = decode(model, prompts, [asked] * 3)
    plain = decode(model, prompts, [asked] * 3, drafts=False, max_batch=1)
    assert sum(r.statistics.accepted for r in drafted) > 0
    for ours, reference in zip(drafted, plain, strict=True):
        entries = [entry for piece in ours.pieces for entry in piece.logprobs]
        expected = [entry for piece in reference.pieces for entry in piece.logprobs]
        assert [e.token for e in entries] == ours.tokens == [e.token for e in expected]
        for entry, other in zip(entries, expected, strict=True):
            assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [t for t, _ in entry.top] == [t for t, _ in other.top]
            assert [p for _, p in entry.top] == pytest.approx([p for _, p in other.top], abs=1e-4)
            assert len(entry.top) == 4 and entry.logprob <= entry.top[0][1] + 1e-6


def test_log_probabilities_are_of_the_distribution_that_was_sampled():
    model = target()
    asked = GenerationSettings(max_tokens=6, temperature=0.5, top_k=2, logprobs=3, ignore_eos=True)
    (request,) = decode(model, [[1, 2, 3]], [asked])
    for entry in (e for piece in request.pieces for e in piece.logprobs):
        best, second, third = (p for _, p in entry.top)
        assert torch.tensor([best, second]).exp().sum() == pytest.approx(1.0, abs=1e-5)
        assert third == -torch.inf


def test_no_log_probabilities_where_none_are_asked():
    (request,) = decode(target(), [[1, 2, 3]], [GenerationSettings(max_tokens=6)])
    assert all(piece.logprobs == () for piece in request.pieces)


def first_tokens(count=10):
    return plain_decode(target(), [1, 2, 3], GenerationSettings(max_tokens=count, ignore_eos=True))


def test_a_stop_token_ends_the_answer_and_is_its_last_token():
    tokens = first_tokens()
    stop = tokens[4]
    asked = GenerationSettings(max_tokens=10, ignore_eos=True, stop_token_ids=(stop,))
    (request,) = decode(target(), [[1, 2, 3]], [asked])
    assert request.tokens == tokens[: tokens.index(stop) + 1]
    assert request.finish_reason == "stop"
    assert request.statistics.tokens == len(request.tokens)


def test_before_min_tokens_nothing_that_ends_the_answer_is_chosen():
    tokens = first_tokens()
    asked = GenerationSettings(max_tokens=10, min_tokens=8, stop_token_ids=(tokens[0], tokens[3]))
    (request,) = decode(target(), [[1, 2, 3]], [asked])
    assert len(request.tokens) >= 8
    assert not {2, tokens[0], tokens[3]} & set(request.tokens[:7])


def test_end_of_text_can_be_ignored():
    third = first_tokens()[2]
    short = tiny_target("llama", vocab_size=VOCABULARY, eos_token_id=[third, 11])
    (ended,) = decode(short, [[1, 2, 3]], [GenerationSettings(max_tokens=10)])
    (whole,) = decode(short, [[1, 2, 3]], [GenerationSettings(max_tokens=10, ignore_eos=True)])
    assert ended.finish_reason == "stop" and ended.tokens[-1] in (third, 11)
    assert len(whole.tokens) == 10 and whole.finish_reason == "length"
    assert whole.tokens[: len(ended.tokens)] == ended.tokens


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias of 3 is nan"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9"),
        ({"logprobs": 21}, "logprobs is 21"),
    ],
)
def test_values_outside_their_range_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        GenerationSettings(**changes)


@pytest.mark.parametrize("changes", [{"logit_bias": {VOCABULARY: 1.0}}, {"stop_token_ids": (-1,)}])
def test_tokens_outside_the_vocabulary_are_refused(changes):
    with pytest.raises(InputError, match="outside the vocabulary of 12"):
        decode(target(), [[1]], [GenerationSettings(**changes)])


def test_seeds_of_samples_differ_and_the_first_is_the_requests_own():
    seeds = [sample_seed(7, i) for i in range(50)]
    assert seeds[0] == 7 and len(set(seeds)) == 50
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert not set(seeds) & {sample_seed(8, i) for i in range(50)}
