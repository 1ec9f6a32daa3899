"""Checks of what joins a drafter's words to its target's: the maps d2t and t2d, the mask token, what is borrowed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paceline.checkpoints.dialect import Dialect
from paceline.doctor.finding import Finding, error, warning
from paceline.doctor.opened import Opened


def check_d2t(opened: Opened) -> Iterator[Finding]:
    """Offsets that lead to distinct tokens of the target, and not the ids themselves."""
    d2t, size = opened.weights.get("d2t"), opened.plain.get("vocab_size")
    if d2t is None or not isinstance(size, int) or d2t.dim() != 1:
        return
    said = opened.plain.get("draft_vocab_size")
    if said is not None and len(d2t) != said:
        yield error(
            "d2t",
            f"d2t has {len(d2t)} entries, but draft_vocab_size is {said}",
            "Head and map would not agree on what a drafted word is.",
            "Restore both from the training run.",
        )
    ids, offsets_lead = d2t.long(), _is_vocabulary(_targets(d2t), size)
    ids_lead = _is_vocabulary(ids, size)
    if not offsets_lead and not ids_lead:
        yield error(
            "d2t",
            f"d2t does not lead to distinct tokens below {size}, neither as offsets nor as ids",
            "Drafted words would be others than the drafter meant.",
            "Restore d2t from the training run: entry i is the target's id of draft token i, less i.",
        )
    elif ids_lead and (not offsets_lead or _names(opened, ids, size)):
        yield error(
            "d2t",
            "d2t holds the target's ids themselves, but must hold offsets (id less index)",
            "Every drafted word would be another one, and nothing be accepted.",
            "Subtract 0, 1, 2, ... from its entries.",
        )


def check_t2d(opened: Opened) -> Iterator[Finding]:
    """The same tokens as d2t's."""
    d2t, t2d, size = opened.weights.get("d2t"), opened.weights.get("t2d"), opened.plain.get("vocab_size")
    if d2t is None or t2d is None or not isinstance(size, int):
        return
    known = [ids for ids in (_targets(d2t), d2t.long()) if _is_vocabulary(ids, size)]
    if t2d.shape != (size,):
        what = f"t2d has shape {list(t2d.shape)}, but the target's vocabulary has {size} tokens"
    elif known and not any(_names(opened, ids, size) for ids in known):
        what = "t2d names other tokens than d2t"
    else:
        return
    yield error(
        "t2d",
        what,
        "The two come from different vocabularies; the drafter was trained with one of them.",
        "Restore both from the training run (t2d may also be left out: d2t says the same).",
    )


def check_mask(opened: Opened) -> Iterator[Finding]:
    """A token of the vocabulary."""
    if opened.dialect is not Dialect.Z_LAB:
        return
    own = opened.plain.get("dflash_config")
    mask = own.get("mask_token_id") if isinstance(own, dict) else None
    mask, size = opened.plain.get("mask_token_id") if mask is None else mask, opened.plain.get("vocab_size")
    if isinstance(mask, int) and isinstance(size, int) and 0 <= mask < size:
        return
    yield error(
        "mask token",
        f"mask_token_id is {mask}, which is no token of the vocabulary of {size}",
        "Every slot of a block is this token's embedding, so nothing can be drafted.",
        "Set it to the token that the drafter was trained with.",
    )


def check_borrowed(opened: Opened) -> Iterator[Finding]:
    """What it says of tied embeddings against what it holds, and whether it may borrow what it lacks."""
    has_embedding, has_head = ("embed_tokens.weight" in opened.weights, "lm_head.weight" in opened.weights)
    if opened.stored.get("tie_word_embeddings") and has_head:
        yield warning(
            "embedding",
            "config.json ties the head to the embedding, but the checkpoint has a head of its own",
            "Libraries that believe config.json overwrite the head when they load it, and acceptance falls to nothing.",
            "Set tie_word_embeddings to false.",
        )
    width, hidden = opened.plain.get("target_hidden_size"), opened.plain.get("hidden_size")
    missing = [name for name, has in (("embedding", has_embedding), ("head", has_head)) if not has]
    if missing and width not in (None, hidden):
        yield error(
            "embedding",
            f"it has no {' and no '.join(missing)} of its own, but is {hidden} wide beside a target of {width}",
            "It cannot borrow the target's, which has another width.",
            "Export it with its own embedding and head.",
        )


def _targets(d2t: Tensor) -> Tensor:
    return d2t.long() + torch.arange(len(d2t))


def _is_vocabulary(ids: Tensor, size: int) -> bool:
    return bool(((ids >= 0) & (ids < size)).all()) and len(ids.unique()) == len(ids)


def _names(opened: Opened, ids: Tensor, size: int) -> bool:
    """Whether t2d is there and names exactly these tokens."""
    t2d = opened.weights.get("t2d")
    if t2d is None or t2d.shape != (size,):
        return False
    named = torch.zeros(size, dtype=torch.bool)
    named[ids] = True
    return torch.equal(named, t2d.bool())
