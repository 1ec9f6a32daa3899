"""Draft trees: values, how they grow from position marginals, and the masks that verify them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from paceline.tree.best_first import best_first
from paceline.tree.chain import chain
from paceline.tree.draft_tree import DraftTree, TreeBatch
from paceline.tree.graft import graft, likeliest_end
from paceline.tree.marginals import Growth, Marginals
from paceline.tree.merge import merge
from paceline.tree.pack import pack
from paceline.tree.render import render_tree
from paceline.tree.top_k import top_k

GROWTHS: Mapping[str, Growth] = MappingProxyType({"chain": chain, "top_k": top_k, "best_first": best_first})

__all__ = [
    "GROWTHS",
    "DraftTree",
    "Growth",
    "Marginals",
    "TreeBatch",
    "best_first",
    "chain",
    "graft",
    "likeliest_end",
    "merge",
    "pack",
    "render_tree",
    "top_k",
]
