"""The laws of whole answers: drafted or not, alone or not, the same text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.drafters.traced import Round
from paceline.engine import Engine
from paceline.policies.base import Policy, RoundView
from paceline.policies.observed import ObservedPolicy
from paceline.proof.subject import Finding, Subject, Texts, answers
from paceline.tree import DraftTree
from paceline.types import GenerationSettings

#: What is tried: each parameter alone, and several together.
PARAMETERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7, "seed": 5},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.4},
    {"logit_bias": {0: -5.0, 1: 2.0}},
    {"min_tokens": 12},
    {"ignore_eos": True},
    {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
    },
)
PARAMETER_TOKENS = 12


def greedy_text_is_plain(subject: Subject) -> Finding:
    """At temperature 0 every drafted text is plain decoding's, token for token."""
    return _alone(subject, subject.settings())


def sampled_text_is_plain(subject: Subject) -> Finding:
    """At temperature 1 the same seed gives the same text, drafted or not."""
    return _alone(subject, subject.settings(temperature=1.0, seed=11))


def neighbours_change_nothing(subject: Subject) -> Finding:
    """In a batch that requests join and leave, with budgets and lengths of their own, each text is its own."""
    texts = Texts(subject)
    lengths = itertools.cycle((1.0, 0.5, 0.75))
    settings = [
        subject.settings(
            max_tokens=max(2, int(subject.max_tokens * share)),
            temperature=0.9 if i % 2 else 0.0,
            seed=i,
            tree_budget=3 + i % 5,
            draft=i % 4 != 3,
        )
        for i, (_, share) in enumerate(zip(subject.prompts, lengths, strict=False))
    ]
    for name, parts in subject.drafted.items():
        for prompt, asked, found in zip(
            subject.prompts, settings, answers(parts, subject.prompts, settings, 3), strict=True
        ):
            texts.compare(name, prompt, found, asked)
    return texts.finding()


def every_parameter_holds(subject: Subject) -> Finding:
    """Every parameter that changes the choice of tokens gives with drafting what it gives without."""
    texts = Texts(subject)
    every_seventh = {"stop_token_ids": tuple(range(0, subject.target.info.vocab_size, 7))}
    for changes, prompt in zip((*PARAMETERS, every_seventh), itertools.cycle(subject.prompts), strict=False):
        asked = subject.settings(**{"max_tokens": PARAMETER_TOKENS, **changes})
        for name, parts in subject.drafted.items():
            (found,) = answers(parts, [prompt], [asked], 1)
            texts.compare(f"{name} with {', '.join(changes)}", prompt, found, asked)
    return texts.finding()


def a_tree_gives_all_it_shares(subject: Subject) -> Finding:
    """A round accepts every node that tree and text share, and so no less than the tree's likeliest chain would."""
    rounds = accepted = shared = chains = 0
    for parts in subject.drafted.values():
        assert parts.policy is not None, "nothing is drafted"
        watched = _WatchedPolicy(parts.policy)
        engine = Engine(replace(parts, policy=watched), max_batch=1)
        for prompt in subject.prompts:
            watched.rounds.clear()
            request = engine.submit(prompt, subject.settings())
            engine.run()
            text = [*prompt, *request.tokens]
            # the last round may be cut where the answer ends
            for verified, kept in watched.rounds[:-1]:
                rounds, accepted = rounds + 1, accepted + kept
                shared += len(verified.accepted(text))
                chains += _agreement(_likeliest_chain(verified.tree), text[verified.num_tokens :])
    per_round = f"{accepted} accepted in {rounds} rounds, {shared} shared, {chains} by chains"
    return Finding(accepted == shared and accepted >= chains, per_round)


class _WatchedPolicy(ObservedPolicy):
    """Keeps every round that verified nodes: its tree as it was verified, and how many of it were kept."""

    def __init__(self, inner: Policy):
        super().__init__(inner)
        self.rounds: list[tuple[Round, int]] = []

    def learn(self, outcome: RoundView) -> None:
        for draft, path in zip(outcome.drafts, outcome.paths, strict=True):
            if draft.tree.num_nodes:
                self.rounds.append((Round(draft.num_tokens, draft.tree), len(path)))
        super().learn(outcome)


def _likeliest_chain(tree: DraftTree) -> list[int]:
    """From the root always to the likeliest child."""
    parents, log_probs = tree.parents.tolist(), tree.log_probs.tolist()
    node, chain = 0, []
    while below := [i for i, parent in enumerate(parents) if parent == node]:
        best = max(below, key=lambda i: log_probs[i])
        chain.append(int(tree.tokens[best]))
        node = best + 1
    return chain


def _agreement(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens at the start are the same."""
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(others)))


def _alone(subject: Subject, settings: GenerationSettings) -> Finding:
    texts = Texts(subject)
    for name, parts in subject.drafted.items():
        for prompt in subject.prompts:
            (found,) = answers(parts, [prompt], [settings], 1)
            texts.compare(name, prompt, found, settings)
    return texts.finding()
