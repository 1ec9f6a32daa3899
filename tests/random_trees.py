"""Random marginals and trees for the tests."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from paceline.tree import DraftTree, Marginals


def random_marginals(
    num_positions: int, width: int, seed: int, vocabulary: int = 4096, sharpness: float = 3.0
) -> Marginals:
    """The `width` best tokens of each position, from a softmax over `vocabulary` tokens."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_positions, vocabulary, generator=generator) * sharpness
    top = logits.log_softmax(-1).topk(width)
    return Marginals(top.indices, top.values)


def tied_marginals(num_positions: int, width: int, seed: int) -> Marginals:
    """Log-probs that are multiples of 1/2, so that many paths tie; some are 0 (q = 1), some -inf."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 3, (num_positions, width), generator=generator)
    log_probs = -steps.cumsum(-1).float() / 2
    log_probs[log_probs < -2] = -torch.inf
    tokens = torch.stack([torch.randperm(width, generator=generator) for _ in range(num_positions)])
    return Marginals(tokens, log_probs)


def expected_acceptance(tree: DraftTree) -> float:
    """The sum of the nodes' path probabilities (DDTree, Proposition 1)."""
    return float(tree.log_probs.double().exp().sum())


@st.composite
def any_marginals(draw: st.DrawFn, max_positions: int = 6, max_width: int = 8) -> Marginals:
    """Marginals of any small shape, with and without ties."""
    num_positions, width = draw(st.integers(0, max_positions)), draw(st.integers(1, max_width))
    seed = draw(st.integers(0, 2**31))
    if draw(st.booleans()):
        return tied_marginals(num_positions, width, seed) if num_positions else random_marginals(0, width, seed)
    return random_marginals(num_positions, width, seed, vocabulary=width + draw(st.integers(0, 8)))


@st.composite
def any_tree(draw: st.DrawFn, max_nodes: int = 24) -> DraftTree:
    """A tree of any shape; tokens are the nodes' numbers, so siblings differ."""
    num_nodes = draw(st.integers(0, max_nodes))
    parents = [draw(st.integers(0, node)) for node in range(num_nodes)]
    return DraftTree(torch.arange(num_nodes) + 100, torch.tensor(parents, dtype=torch.int64), torch.zeros(num_nodes))


def random_tree(seed: int, size: int, vocabulary: int = 4) -> DraftTree:
    """A tree of at most `size` nodes over few tokens, so that two such trees overlap."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    parents: list[int] = []
    log_probs = [0.0]
    taken = set()
    for _ in range(size):
        parent = int(torch.randint(0, len(tokens) + 1, (), generator=generator))
        token = int(torch.randint(0, vocabulary, (), generator=generator))
        if (parent, token) not in taken:
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            log_probs.append(log_probs[parent] - float(torch.rand((), generator=generator)))
    return DraftTree(
        torch.tensor(tokens, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64), torch.tensor(log_probs[1:])
    )
