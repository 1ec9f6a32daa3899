"""The host's twin of `pack`: one compiled loop writes each node's row of the mask from its parent's.

At a few dozen nodes the dispatch of tensor operations costs more than their work, so the arrays are numpy's
until the batch is whole.

Letters: b sequences, m nodes of a pass, root included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from paceline.host_jit import host_jit
from paceline.tree.draft_tree import DraftTree, TreeBatch


def pack_host(trees: Sequence[DraftTree], anchors: Int64[Tensor, " b"]) -> TreeBatch:
    """`pack_tensors`, element for element, for trees in host memory."""
    counts = [tree.num_nodes for tree in trees]
    num_rows, width = len(trees), 1 + max(counts)
    tokens = np.zeros((num_rows, width), np.int64)
    parents = np.zeros((num_rows, width), np.int64)
    tokens[:, 0] = anchors.numpy()
    for row, (tree, count) in enumerate(zip(trees, counts, strict=True)):
        tokens[row, 1 : count + 1] = tree.tokens.numpy()
        parents[row, 1 : count + 1] = tree.parents.numpy()
    depths = np.empty((num_rows, width), np.int64)
    visible = np.empty((num_rows, width, width), np.bool_)
    num_nodes = np.array(counts, np.int64)
    _fill(parents, num_nodes, depths, visible)
    return TreeBatch(*map(torch.from_numpy, (tokens, parents, depths, num_nodes, visible)))


@host_jit
@no_type_check
def _fill(parents: Any, num_nodes: Any, depths: Any, visible: Any) -> None:
    """Write the depths [b, m] and the visibility [b, m, m]."""
    num_rows, width = parents.shape
    for row in range(num_rows):
        for node in range(width):
            if 0 < node <= num_nodes[row]:
                parent = parents[row, node]
                depths[row, node] = depths[row, parent] + 1
                visible[row, node] = visible[row, parent]
            else:
                depths[row, node] = 0
                visible[row, node] = False
            visible[row, node, node] = True
