"""From names and paths to a drafter: checked against its target, and ready for the target's device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.attach import make_ready
from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.networks import load_network
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.eagle3 import EAGLE3_TREES, Eagle3Drafter
from paceline.drafters.heads import HeadsDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.drafters.small_model import SMALL_MODEL_TREES, SmallModelDrafter
from paceline.drafters.specblock import SpecBlockDrafter, specblock_tree
from paceline.errors import CheckpointError, InputError
from paceline.sources import NO_DRAFTER, PROMPT_LOOKUP, differing_tokens, drafter_path, load_tokenizer
from paceline.target.base import Target
from paceline.target_loading import load_target
from paceline.tree import GROWTHS


def load_drafter(
    name: str,
    target: Target,
    tree: str = "best_first",
    tree_budget: int | None = None,
    siblings: tuple[int, int, int, int] | None = None,
    starts: int | None = None,
    tokenizer: Any = None,
) -> Drafter | None:
    """A drafter by name or path. A language model as drafter is compared with the target's `tokenizer`.

    Raises:
        InputError: sizes or a tree that this drafter does not have.
        CheckpointError: it cannot be read, or was made for another target.
    """
    if tree not in GROWTHS:
        raise InputError(f"tree is {tree!r}, but must be one of {', '.join(GROWTHS)}.")
    path = None if name in (NO_DRAFTER, PROMPT_LOOKUP) else drafter_path(name)
    dialect = None if path is None else dialect_of(path)
    if dialect is not Dialect.SPECBLOCK:
        _refuse_shape(name, siblings=siblings, starts=starts)
    if path is None:
        return _without_network(name, tree)
    if dialect is Dialect.CAUSAL_LM:
        return _small_model(path, target, tree, tree_budget, tokenizer)
    assert dialect is not None, "a folder has one"
    shape = specblock_tree(tree, siblings, starts) if dialect is Dialect.SPECBLOCK else None
    network = load_network(dialect, path, target.info.num_layers)
    make_ready(network, network.config, target)
    match dialect:
        case Dialect.SPECBLOCK:
            return SpecBlockDrafter(network, shape, tree_budget)
        case Dialect.EAGLE3:
            return Eagle3Drafter(network, EAGLE3_TREES[tree], tree_budget)
        case Dialect.HEADS:
            return HeadsDrafter(network, GROWTHS[tree], tree_budget)
    return DFlashDrafter(network, GROWTHS[tree], tree_budget)


def _refuse_shape(name: str, **shape: Any) -> None:
    for what, value in shape.items():
        if value is not None:
            raise InputError(f"{what} shapes the trees of a SpecBlock drafter, but {name!r} is none; leave it out.")


def _without_network(name: str, tree: str) -> Drafter | None:
    if name == NO_DRAFTER:
        return None
    if tree not in ("best_first", "chain"):
        raise InputError(f"prompt_lookup drafts a chain, but tree {tree!r} was asked for; leave it out.")
    return PromptLookupDrafter()


def _small_model(path: Path, target: Target, tree: str, tree_budget: int | None, tokenizer: Any) -> Drafter:
    assert tokenizer is not None, "whoever takes any drafter has the target's tokenizer"
    _check_vocabulary(path, tokenizer)
    model = load_target(str(path), target.info.dtype, str(target.info.device))
    num_words = min(model.info.vocab_size, target.info.vocab_size)
    readable = model.embedding.shape[0]
    return SmallModelDrafter(model, num_words, readable, model.info.max_context, SMALL_MODEL_TREES[tree], tree_budget)


def _check_vocabulary(path: Path, tokenizer: Any) -> None:
    """Refuse a language model whose words have other numbers than the target's; one that has more of them will do."""
    theirs = load_tokenizer(str(path))
    differing = differing_tokens(tokenizer, theirs)
    if differing:
        words = [each.convert_ids_to_tokens(differing[0]) for each in (theirs, tokenizer)]
        raise CheckpointError(
            f"{path} cannot draft for this target: {len(differing)} tokens are other words for it (token "
            f"{differing[0]} is {words[0]!r}, the target's {words[1]!r}); use a model with the same tokenizer."
        )
