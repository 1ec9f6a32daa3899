"""Several trees into the one batch that a verification pass reads.

Letters: b sequences, m nodes of a pass, root included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from paceline.tree.draft_tree import DraftTree, TreeBatch
from paceline.tree.masks import ancestor_mask, node_depths
from paceline.tree.pack_host import pack_host


def pack(trees: Sequence[DraftTree], anchors: Int64[Tensor, " b"]) -> TreeBatch:
    """Pad trees of one device to the width of the largest, and work out who sees whom.

    The choice between the host's loop and the tensor form is here.
    """
    assert len(trees) == len(anchors) > 0, f"{len(trees)} trees do not go with {len(anchors)} anchors"
    if trees[0].tokens.device.type == "cpu":
        return pack_host(trees, anchors)
    return pack_tensors(trees, anchors)


def pack_tensors(trees: Sequence[DraftTree], anchors: Int64[Tensor, " b"]) -> TreeBatch:
    """`pack` in tensor operations, for any device."""
    device = trees[0].tokens.device
    drafted = pad_sequence([tree.tokens for tree in trees], batch_first=True)
    tokens = torch.cat((anchors.to(device)[:, None], drafted), 1)
    parents = pad(pad_sequence([tree.parents for tree in trees], batch_first=True), (1, 0))
    num_nodes = torch.tensor([tree.num_nodes for tree in trees], device=device)
    visible = ancestor_mask(parents, num_nodes)
    return TreeBatch(tokens, parents, node_depths(visible), num_nodes, visible)
