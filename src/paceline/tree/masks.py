"""Depths and the ancestor-only mask of trees, from parents alone.

Pointer doubling does all nodes at once: if every node knows its ancestors less than h steps away and the one
exactly h away, joining the two nodes' sets gives those less than 2h away. `pack_host` has the host's loop.

Letters: b sequences, m nodes of a pass, root included.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor


def ancestor_mask(parents: Int64[Tensor, "b m"], num_nodes: Int64[Tensor, " b"]) -> Bool[Tensor, "b m m"]:
    """`visible[i, j, k]`: k is j itself or an ancestor of j; columns past `num_nodes` see only themselves.

    Runs on any device, without waiting for it.
    """
    num_rows, width = parents.shape
    index = torch.arange(width, device=parents.device)
    hop = torch.where(index <= num_nodes[:, None], parents, index)
    visible = torch.eye(width, dtype=torch.bool, device=parents.device).repeat(num_rows, 1, 1)
    for _ in range((width - 1).bit_length()):
        visible = visible | visible.gather(1, hop[:, :, None].expand(-1, -1, width))
        hop = hop.gather(1, hop)
    return visible


def node_depths(visible: Bool[Tensor, "b m m"]) -> Int64[Tensor, "b m"]:
    """How many ancestors each node has: 0 for the root and for padding."""
    return visible.sum(-1) - 1
