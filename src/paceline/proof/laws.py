"""The laws, in an order in which the first that breaks is the one to mend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.proof import passes, texts
from paceline.proof.subject import Finding, Subject


@dataclass(frozen=True)
class Law:
    """A sentence that must be true, and what checks it."""

    name: str
    sentence: str
    check: Callable[[Subject], Finding]


LAWS = (
    Law("mask", "a node sees the committed text, its ancestors and itself", passes.sees_its_ancestors_only),
    Law("position", "a node stands where its depth puts it", passes.stands_at_its_depth),
    Law("cache", "the cache keeps the accepted path and nothing else", passes.keeps_the_accepted_path_only),
    Law("bonus", "every token is the target's own after the one before", passes.every_token_is_the_targets),
    Law("greedy", "greedy text is plain decoding's", texts.greedy_text_is_plain),
    Law("sampled", "the same seed gives plain decoding's text", texts.sampled_text_is_plain),
    Law("batch", "neighbours change nothing", texts.neighbours_change_nothing),
    Law("parameters", "penalties, biases and ends act as without drafting", texts.every_parameter_holds),
    Law("tree", "a round accepts all that tree and text share", texts.a_tree_gives_all_it_shares),
)
