"""The promise: the same answer. Greedy token for token, sampled in distribution and seed for seed."""

import pytest

import paceline.decode
from lossless_cases import chi_square_p, exact_distribution, sample_continuations
from paceline.acceptance import Accepted, match
from paceline.decode import Parts
from paceline.engine import Engine
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.types import GenerationSettings
from tiny_models import CONFIGS, RandomTreeDrafter, tiny_model, tiny_target

PROMPTS = [[1, 2, 3], [4], [9, 8, 7, 6, 5, 4, 3], [11, 11], [2, 30, 17], [38], [5, 1], [6, 6, 6, 6]]


def drafted(target, seed=0, chain=False) -> Parts:
    vocabulary = target.info.vocab_size
    return Parts(target, RandomTreeDrafter(vocabulary, seed, chain), FixedPolicy(5, 12))


@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("chain", [False, True], ids=["tree", "chain"])
def test_greedy_text_equals_plain_decoding_in_a_batch_that_changes(family, chain):
    target = tiny_target(family)
    settings = GenerationSettings(max_tokens=14)
    engine = Engine(drafted(target, chain=chain), max_batch=3)
    requests = [engine.submit(p, GenerationSettings(max_tokens=5 + i)) for i, p in enumerate(PROMPTS)]
    engine.run()
    for request in requests:
        assert request.tokens == plain_decode(target, request.prompt, settings)[: request.settings.max_tokens]
    if not chain:
        assert sum(r.statistics.accepted for r in requests) > 0, "nothing was ever accepted: the test shows nothing"


def test_same_seed_gives_the_same_sampled_text_drafted_or_not_alone_or_in_a_batch():
    target = tiny_target("llama", vocab_size=8)
    settings = [GenerationSettings(max_tokens=12, temperature=1.5, top_k=6, seed=40 + i) for i in range(8)]
    prompts = [[t % 8 for t in p] for p in PROMPTS]
    plain = [plain_decode(target, p, s) for p, s in zip(prompts, settings, strict=True)]
    for batch in (1, 4):
        engine = Engine(drafted(target, seed=batch), max_batch=batch)
        requests = [engine.submit(p, s) for p, s in zip(prompts, settings, strict=True)]
        engine.run()
        assert [r.tokens for r in requests] == plain
        assert sum(r.statistics.accepted for r in requests) > 0


def _statistical_setup():
    model = tiny_model("llama", vocab_size=8, num_hidden_layers=1)
    for parameter in model.parameters():
        parameter.data.mul_(0.6 if parameter.dim() > 1 else 1.0)
    target = HuggingFaceTarget(model, "tiny")
    settings = GenerationSettings(temperature=1.0)
    return model, target, settings, exact_distribution(model, [3, 1, 2], 3, settings)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["plain", "chain", "tree"])
def test_sampled_continuations_follow_the_exact_distribution(method):
    _, target, settings, exact = _statistical_setup()
    parts = Parts(target) if method == "plain" else drafted(target, seed=1, chain=method == "chain")
    count = 5_000 if method == "plain" else 10_000  # plain decoding is what nobody doubts; 5,000 show a broken rule
    samples = sample_continuations(parts, [3, 1, 2], 3, settings, count)
    assert chi_square_p(samples, exact) > 0.001


@pytest.mark.slow
def test_a_broken_acceptance_rule_fails_the_same_statistical_test(monkeypatch):
    _, target, settings, exact = _statistical_setup()

    def accepts_the_first_child(trees, target_tokens) -> Accepted:
        """Takes the root's first child whatever the target says: not lossless."""
        right = match(trees, target_tokens)
        tokens = [
            [int(trees.tokens[i, 1]), int(target_tokens[i, 1])] if trees.num_nodes[i] else right.tokens[i]
            for i in range(len(right.tokens))
        ]
        paths = [[1] if trees.num_nodes[i] else [] for i in range(len(right.paths))]
        return Accepted(paths, tokens)

    monkeypatch.setattr(paceline.decode, "match", accepts_the_first_child)
    samples = sample_continuations(drafted(target, seed=1), [3, 1, 2], 3, settings, 5_000)
    assert chi_square_p(samples, exact) < 1e-6
