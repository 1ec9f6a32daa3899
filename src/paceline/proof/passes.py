"""The laws of one pass: what a node sees, where it stands, what stays in the cache, which token follows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from paceline.acceptance import Accepted
from paceline.decode import RoundObserver
from paceline.engine import Engine
from paceline.proof.subject import Finding, Subject, distance
from paceline.sequence import ActiveSequence
from paceline.target.base import Pass
from paceline.tree import DraftTree, TreeBatch, pack

TREES = 3
NODES = 12


def sees_its_ancestors_only(subject: Subject) -> Finding:
    """Change every token that a node must not see: its logits stay. Change its root: they do not."""
    worst, least = 0.0, float("inf")
    for prompt, tree in _cases(subject):
        node = tree.num_nodes
        root = prompt[-1]
        before = _pass(subject, prompt[:-1], root, tree).logits[0, node]
        ancestors = set(_path(tree, node))
        others = tree.tokens.clone()
        for i in range(tree.num_nodes):
            if i + 1 not in ancestors:
                others[i] = _another(subject, int(others[i]))
        unseen = _pass(subject, prompt[:-1], root, replace(tree, tokens=others)).logits[0, node]
        worst = max(worst, distance(unseen, before))
        changed = _pass(subject, prompt[:-1], _another(subject, root), tree).logits[0, node]
        least = min(least, distance(changed, before))
    measured = f"unseen tokens move logits by {worst:.1e}, seen ones by {least:.1e}"
    return Finding(worst <= subject.tolerance and least > max(3 * worst, 1e-6), measured)


def stands_at_its_depth(subject: Subject) -> Finding:
    """A node's logits are those that decoding its path token by token gives."""
    worst = 0.0
    for prompt, tree in _cases(subject):
        node = tree.num_nodes
        found = _pass(subject, prompt[:-1], prompt[-1], tree).logits[0, node]
        cache = subject.target.new_cache(1, len(prompt) + NODES + 1)
        subject.target.prefill(cache, 0, prompt[:-1])
        for token in [prompt[-1], *(int(tree.tokens[i - 1]) for i in _path(tree, node))]:
            step = subject.target.verify(cache, _plain(subject, token))
            cache.extend([1])
        worst = max(worst, distance(found, step.logits[0, 0]))
    return Finding(worst <= subject.tolerance, f"logits differ from token-by-token decoding by {worst:.1e}")


def keeps_the_accepted_path_only(subject: Subject) -> Finding:
    """After a round the cache holds what reading the committed tokens afresh puts there."""
    worst = 0.0
    for prompt, tree in _cases(subject):
        path = _path(tree, tree.num_nodes)
        cache = subject.target.new_cache(1, len(prompt) + NODES + 1)
        subject.target.prefill(cache, 0, prompt[:-1])
        subject.target.verify(cache, pack([tree], torch.tensor([prompt[-1]])).to(subject.target.info.device))
        cache.keep([path])
        fresh = subject.target.new_cache(1, len(prompt) + NODES + 1)
        subject.target.prefill(fresh, 0, [*prompt, *(int(tree.tokens[i - 1]) for i in path)])
        if cache.lengths != fresh.lengths:
            return Finding(False, f"{cache.lengths[0]} tokens kept, {fresh.lengths[0]} committed")
        for kept, expected in zip(cache.committed([0]), fresh.committed([0]), strict=True):
            worst = max(worst, *(distance(k, e) for k, e in zip(kept, expected, strict=True)))
    return Finding(worst <= subject.tolerance, f"keys and values differ from a fresh prefill's by {worst:.1e}")


class _Rounds(RoundObserver):
    """Checks every round's tokens against the logits that the target gave."""

    def __init__(self, feature_layers: tuple[int, ...]):
        self.feature_layers = feature_layers
        self.tokens = self.accepted = self.wrong = 0

    def on_round(self, sequences: Sequence[ActiveSequence], result: Pass, accepted: Accepted) -> None:
        for row, (path, tokens) in enumerate(zip(accepted.paths, accepted.tokens, strict=True)):
            expected = result.logits[row, [0, *path]].argmax(-1).tolist()
            self.tokens += len(tokens)
            self.accepted += len(path)
            self.wrong += sum(a != b for a, b in zip(tokens, expected, strict=True))


def every_token_is_the_targets(subject: Subject) -> Finding:
    """Each accepted token is the target's own after its parent, and the bonus that after the last accepted node."""
    rounds = []
    for parts in subject.drafted.values():
        assert parts.drafter is not None, "nothing is drafted"
        rounds.append(_Rounds(parts.drafter.feature_layers))
        engine = Engine(replace(parts, observer=rounds[-1]), max_batch=1)
        for prompt in subject.prompts:
            engine.submit(prompt, subject.settings())
        engine.run()
    tokens, accepted, wrong = (sum(getattr(r, name) for r in rounds) for name in ("tokens", "accepted", "wrong"))
    return Finding(wrong == 0, f"{wrong} of {tokens} tokens, {accepted} of them drafted, are not what the target says")


def _cases(subject: Subject) -> list[tuple[list[int], DraftTree]]:
    """Prompts, each with a random tree that branches."""
    rng = random.Random(0)
    cases = []
    for i in range(TREES):
        prompt = subject.prompts[i % len(subject.prompts)]
        tokens = rng.sample(range(subject.target.info.vocab_size), NODES)
        # node i hangs below i - 1 half the time, so that the last ones are deep
        parents = [max(0, node - 1 - (rng.random() < 0.5)) for node in range(1, NODES + 1)]
        cases.append((prompt, DraftTree(torch.tensor(tokens), torch.tensor(parents), torch.zeros(NODES))))
    return cases


def _pass(subject: Subject, context: list[int], root: int, tree: DraftTree) -> Pass:
    cache = subject.target.new_cache(1, len(context) + NODES + 2)
    subject.target.prefill(cache, 0, context)
    return subject.target.verify(cache, pack([tree], torch.tensor([root])).to(subject.target.info.device))


def _plain(subject: Subject, token: int) -> TreeBatch:
    return pack([DraftTree.empty()], torch.tensor([token])).to(subject.target.info.device)


def _path(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node:
        path.insert(0, node)
        node = int(tree.parents[node - 1])
    return path


def _another(subject: Subject, token: int) -> int:
    return (token + 1 + subject.target.info.vocab_size // 3) % subject.target.info.vocab_size
