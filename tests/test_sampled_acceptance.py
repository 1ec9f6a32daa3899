"""The reject and the block rule emit the target's distribution, and the block rule keeps no less."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from lossless_cases import chi_square_p, exact_distribution, sample_continuations
from paceline.decode import Parts
from paceline.engine import Engine
from paceline.plain import plain_decode
from paceline.policies.fixed import FixedPolicy
from paceline.sampled_acceptance import block, reject
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.tree import Marginals
from paceline.tree.sampled_chain import sampled_chain
from paceline.types import GenerationSettings
from tiny_models import RandomTreeDrafter, tiny_model, tiny_target

VOCABULARY, DRAFTED = 3, 2


def distributions(seed, sharpness=1.0):
    """p and q after every prefix of at most DRAFTED tokens."""
    generator = torch.Generator().manual_seed(seed)
    prefixes = [prefix for n in range(DRAFTED + 1) for prefix in product(range(VOCABULARY), repeat=n)]

    def draw():
        return {
            prefix: (torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) * sharpness).softmax(-1)
            for prefix in prefixes
        }

    return draw(), draw()


def run(rule, p, q, seed, draws=6000):
    """Texts of DRAFTED + 1 tokens, the rule's first and then p's own, and how many tokens were kept."""
    rng = np.random.default_rng(seed)
    texts, kept_tokens = [], 0
    for _ in range(draws):
        drafted = ()
        while len(drafted) < DRAFTED:
            drafted += (int(rng.choice(VOCABULARY, p=q[drafted].numpy())),)
        of_p = torch.stack([p[drafted[:i]] for i in range(DRAFTED + 1)])
        of_q = torch.stack([q[drafted[:i]] for i in range(DRAFTED)])
        kept, weights = rule(of_p, of_q, torch.tensor(drafted), torch.tensor(rng.random(DRAFTED)))
        text = (*drafted[:kept], int(rng.choice(VOCABULARY, p=(weights / weights.sum()).numpy())))
        while len(text) < DRAFTED + 1:
            text += (int(rng.choice(VOCABULARY, p=p[text].numpy())),)
        texts.append(text)
        kept_tokens += kept
    return texts, kept_tokens / draws


def p_value(texts, p):
    outcomes = list(product(range(VOCABULARY), repeat=DRAFTED + 1))
    expected = np.array([np.prod([p[o[:i]][o[i]] for i in range(DRAFTED + 1)]) for o in outcomes])
    counts = [texts.count(o) for o in outcomes]
    return stats.chisquare(counts, expected / expected.sum() * len(texts)).pvalue


@pytest.mark.parametrize("rule", [reject, block])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_emitted_is_distributed_as_the_target(rule, seed):
    p, q = distributions(seed)
    texts, _ = run(rule, p, q, seed)
    assert p_value(texts, p) > 0.001


def test_a_rule_that_keeps_everything_fails_the_same_test():
    def keeps_all(p, q, tokens, uniforms):
        return len(tokens), p[-1]

    p, q = distributions(0)
    assert p_value(run(keeps_all, p, q, 0)[0], p) < 1e-6


@pytest.mark.slow
def test_the_block_rule_keeps_no_less_than_the_reject_rule():
    gains = []
    for seed in range(3):
        p, q = distributions(seed, sharpness=1.5)
        gains.append(run(block, p, q, seed, 2000)[1] - run(reject, p, q, seed, 2000)[1])
    assert min(gains) > -0.02 and max(gains) > 0.01


@pytest.mark.parametrize("rule", [reject, block])
def test_where_q_is_p_everything_is_kept(rule):
    p = torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
    kept, weights = rule(p, p[:-1], torch.tensor([1, 0]), torch.tensor([0.999, 0.999]))
    assert kept == 2 and torch.equal(weights, p[-1])


@pytest.mark.parametrize("rule", [reject, block])
def test_a_token_that_the_target_cannot_say_falls(rule):
    p = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    kept, weights = rule(p, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([0.0]))
    assert kept == 0 and torch.equal(weights, p[0])


class SampledChains(RandomTreeDrafter):
    """Chains drawn from a fixed random q."""

    def draft(self, state, requests, clock):
        return [self._chain(request) for request in requests]

    def _chain(self, request):
        count = min(request.block_size - 1, request.max_depth) if request.wants_nodes else 0
        generator = torch.Generator().manual_seed(len(request.tokens))
        top = torch.randn(count, self.vocab_size, generator=generator).log_softmax(-1).sort(-1, descending=True)
        marginals = Marginals(top.indices, top.values)
        settings = request.temperature, request.seed, len(request.tokens), self.vocab_size
        return sampled_chain(marginals, count, *settings)


def parts(target, rule, chains=3):
    return Parts(target, SampledChains(target.info.vocab_size), FixedPolicy(1 + chains, chains), rule=rule)


@pytest.mark.parametrize("rule", [reject, block])
def test_in_the_loop_greedy_text_is_plain_decodings(rule):
    target = tiny_target("llama", vocab_size=6)
    prompts = [[1, 2, 3], [4], [5, 5]]
    engine = Engine(parts(target, rule), max_batch=2)
    requests = [engine.submit(p, GenerationSettings(max_tokens=12)) for p in prompts]
    engine.run()
    assert [r.tokens for r in requests] == [plain_decode(target, p, GenerationSettings(max_tokens=12)) for p in prompts]
    assert sum(r.statistics.accepted for r in requests) > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", [reject, block])
def test_in_the_loop_continuations_follow_the_exact_distribution(rule):
    # five tokens by chains of three: what a round rejects is drafted and tested again in the next one
    model = tiny_model("llama", vocab_size=3, num_hidden_layers=1)
    for parameter in model.parameters():
        parameter.data.mul_(0.6 if parameter.dim() > 1 else 1.0)
    target, settings = HuggingFaceTarget(model, "tiny"), GenerationSettings(temperature=1.0)
    exact = exact_distribution(model, [2, 1, 2], 5, settings)
    samples = sample_continuations(parts(target, rule), [2, 1, 2], 5, settings, 6_000)
    assert chi_square_p(samples, exact) > 0.001
