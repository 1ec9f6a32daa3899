"""The laws of whole answers: drafted or not, alone or not, the same text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.decode import Parts
from paceline.drafters.dflash import DFlashDrafter
from paceline.engine import Engine
from paceline.proof.subject import Finding, Subject, Texts, answers
from paceline.tree import DraftTree, Marginals, chain
from paceline.types import GenerationSettings

#: What the matrix of parameters is made of: each alone, and all of a row of it together.
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
    """Every parameter of a request gives with drafting what it gives without."""
    texts = Texts(subject)
    for changes, prompt in zip(PARAMETERS, itertools.cycle(subject.prompts), strict=False):
        asked = subject.settings(**{"max_tokens": PARAMETER_TOKENS, **changes})
        for name, parts in subject.drafted.items():
            (found,) = answers(parts, [prompt], [asked], 1)
            texts.compare(f"{name} with {', '.join(changes)}", prompt, found, asked)
    return texts.finding()


def a_tree_accepts_no_less_than_its_chain(subject: Subject) -> Finding:
    """At the same round a tree accepts at least as much as the chain of the likeliest tokens, as far as it holds it."""
    chains = trees = rounds = worse = 0
    for parts in subject.drafted.values():
        recorded = _with_recorded_growth(parts)
        if recorded is None:
            continue
        observed, growth = recorded
        engine = Engine(observed, max_batch=1)
        for prompt in subject.prompts:
            growth.grown.clear()
            request = engine.submit(prompt, subject.settings())
            engine.run()
            position = 1  # the first token is the prefill's
            for tree, straight in growth.grown:
                rest = request.tokens[position:]
                held = straight.tokens[: _accepted(tree, straight.tokens.tolist())].tolist()
                of_tree, of_chain = _accepted(tree, rest), _agreement(held, rest)
                rounds, trees, chains = rounds + 1, trees + of_tree, chains + of_chain
                worse += of_tree < of_chain
                position += of_tree + 1
    if not rounds:
        return Finding(True, "no drafter grows trees that hold a chain")
    return Finding(
        worse == 0, f"{trees / rounds:.2f} accepted by trees, {chains / rounds:.2f} by chains in {rounds} rounds"
    )


@dataclass
class _RecordedGrowth:
    grow: Any
    grown: list[tuple[DraftTree, DraftTree]]

    def __call__(self, marginals: Marginals, budget: int) -> DraftTree:
        tree = self.grow(marginals, budget)
        self.grown.append((tree, chain(marginals, budget)))
        return tree


def _with_recorded_growth(parts: Parts) -> tuple[Parts, _RecordedGrowth] | None:
    drafter = parts.drafter
    if not isinstance(drafter, DFlashDrafter) or drafter.growth is chain:
        return None
    growth = _RecordedGrowth(drafter.growth, [])
    recorded = DFlashDrafter(drafter.network, growth, drafter.default_tree_budget, drafter.shared_noise)
    return replace(parts, drafter=recorded), growth


def _children(tree: DraftTree) -> dict[tuple[int, int], int]:
    pairs = zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    return {pair: node for node, pair in enumerate(pairs, start=1)}


def _accepted(tree: DraftTree, tokens: Sequence[int]) -> int:
    """Nodes of the tree that the text went through, as far as it goes."""
    children, node, count = _children(tree), 0, 0
    for token in tokens:
        if (node, token) not in children:
            break
        node, count = children[node, token], count + 1
    return count


def _agreement(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens at the start are the same."""
    return next(
        (i for i, (a, b) in enumerate(zip(tokens, others, strict=False)) if a != b), min(len(tokens), len(others))
    )


def _alone(subject: Subject, settings: GenerationSettings) -> Finding:
    texts = Texts(subject)
    for name, parts in subject.drafted.items():
        for prompt in subject.prompts:
            (found,) = answers(parts, [prompt], [settings], 1)
            texts.compare(name, prompt, found, settings)
    return texts.finding()
