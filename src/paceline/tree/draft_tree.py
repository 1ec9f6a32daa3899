"""Draft trees, and the batch of them that one verification pass reads.

The index space of a pass: 0 is the root (the anchor), node i is the i-th drafted token, parents first.

    the ──┬── cat ──── sat          index    0    1    2    3    4
          └── dog ──── ran          token   the  cat  dog  sat  ran
                                    parent   0    0    0    1    2

Letters: b sequences, n nodes of a tree, m = 1 + nodes of the largest tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor
from torch.nn.functional import pad

from paceline.tree.masks import ancestor_mask, node_depths


@dataclass(frozen=True)
class DraftTree:
    """The tokens proposed for one sequence; a chain is a tree of width one.

    `parents[i]` is the parent of node i + 1 in the index space of the pass, so `parents[i] <= i`;
    `log_probs` is the surrogate log-probability of each node's whole path; siblings bear different tokens.
    A chain that was sampled carries in `q` the distribution that each of its tokens was drawn from.
    """

    tokens: Int64[Tensor, " n"]
    parents: Int64[Tensor, " n"]
    log_probs: Float32[Tensor, " n"]
    q: Float32[Tensor, "n v"] | None = None

    @classmethod
    def empty(cls, device: torch.device | str | None = None) -> DraftTree:
        """The tree of zero nodes: its round is a plain one."""
        index = torch.empty(0, dtype=torch.int64, device=device)
        return cls(index, index, torch.empty(0, dtype=torch.float32, device=device))

    @property
    def num_nodes(self) -> int:
        """Drafted tokens, root excluded."""
        return self.tokens.shape[0]

    def depths(self) -> Int64[Tensor, " n"]:
        """The depth of each node; 1 is a child of the root."""
        num_nodes = torch.tensor([self.num_nodes], device=self.parents.device)
        return node_depths(ancestor_mask(pad(self.parents, (1, 0))[None], num_nodes))[0, 1:]

    def first(self, count: int) -> DraftTree:
        """The tree of the first nodes: parents come first, so that it is one."""
        if count >= self.num_nodes:
            return self
        return DraftTree(
            self.tokens[:count],
            self.parents[:count],
            self.log_probs[:count],
            None if self.q is None else self.q[:count],
        )

    def validate(self) -> None:
        """Check what the docstring promises; an AssertionError names what does not hold."""
        tokens, parents, log_probs = self.tokens.tolist(), self.parents.tolist(), self.log_probs.tolist()
        assert len(tokens) == len(parents) == len(log_probs), "tokens, parents and log_probs differ in length"
        assert all(0 <= parent <= i for i, parent in enumerate(parents)), "a parent comes after its child"
        assert len(set(zip(parents, tokens, strict=True))) == len(tokens), "siblings bear the same token"
        path_log_probs = [0.0, *log_probs]
        for parent, log_prob in zip(parents, log_probs, strict=True):
            assert -torch.inf < log_prob <= path_log_probs[parent], "a path is impossible or above its start"


@dataclass(frozen=True)
class TreeBatch:
    """The trees of a batch, padded to the largest, in the index space of the pass.

    Column 0 is the anchor. Padding has token, parent and depth 0 and sees only itself.
    `visible[i, j, k]`: k is j itself or one of its ancestors, the root included.
    """

    tokens: Int64[Tensor, "b m"]
    parents: Int64[Tensor, "b m"]
    depths: Int64[Tensor, "b m"]
    num_nodes: Int64[Tensor, " b"]
    visible: Bool[Tensor, "b m m"]

    def to(self, device: torch.device | str) -> TreeBatch:
        """The same batch on `device`."""
        return TreeBatch(
            self.tokens.to(device),
            self.parents.to(device),
            self.depths.to(device),
            self.num_nodes.to(device),
            self.visible.to(device),
        )
