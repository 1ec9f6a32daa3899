"""Acceptance rules: which drafted nodes are kept, and which token follows them.

    target, p     the model whose output must be reproduced, after the request's sampling transforms
    drafter, q    what proposed the nodes
    anchor        the last committed token, root of the tree (index 0 of the verification pass)
    node, depth   a drafted token; depth 1 follows the anchor
    accepted      nodes kept; they form a path from the root
    bonus         the one target token that every round adds after the accepted path

The match rule. At each visited node take the target's own token: the argmax of p at temperature 0, one
sample of p otherwise. If a child bears that token step into it, else stop; the last target token is the
bonus. Lossless, because every emitted token *is* the target's token given exactly the tokens before it:
the token emitted after a node is the one drawn from p(. | context, path to the node), the draw does not
look at the tree, and the tree only decides how many of these draws one forward pass could serve. By
induction over positions the emitted sequence has the joint distribution (at temperature 0: is the very
sequence) of plain decoding. METHODS section 1.

Letters: b sequences, m = N + 1 nodes of a pass, root included.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Int64
from torch import Tensor

from paceline.tree import TreeBatch


@dataclass(frozen=True)
class Accepted:
    """The outcome of one round for each sequence of a batch.

    `paths[i]` lists the accepted nodes of sequence i in the index space of the pass (parents first, root
    left out); `tokens[i]` are the tokens to emit: the path's, then the bonus.
    """

    paths: list[list[int]]
    tokens: list[list[int]]


def matched_nodes(trees: TreeBatch, target_tokens: Int64[Tensor, "b m"]) -> Bool[Tensor, "b m"]:
    """Nodes that lie on the accepted path, root included.

    `target_tokens[i, j]` is the target's token after node j. A node is accepted when it and each of its
    ancestors bear the target's token of their parent; siblings differ, so these nodes are one path.
    """
    agrees = trees.tokens == target_tokens.gather(1, trees.parents)
    agrees[:, 0] = True
    positions = agrees.new_ones(agrees.shape[1]).cumsum(0) - 1
    agrees &= positions <= trees.num_nodes[:, None]
    return (agrees[:, None, :] | ~trees.visible).all(-1) & agrees


def match(trees: TreeBatch, target_tokens: Int64[Tensor, "b m"]) -> Accepted:
    """The match rule, over the whole batch at once."""
    kept = matched_nodes(trees, target_tokens).tolist()
    emitted = target_tokens.tolist()
    paths = [[node for node, is_kept in enumerate(row) if is_kept and node] for row in kept]
    tokens = [[row[node] for node in [0, *path]] for path, row in zip(paths, emitted, strict=True)]
    return Accepted(paths, tokens)
