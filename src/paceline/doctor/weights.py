"""Checks of the weights alone: are all there, of the right shapes, and numbers that can have been learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from paceline.checkpoints.files import few
from paceline.doctor.finding import Finding, error, warning
from paceline.doctor.opened import Opened

_MAPS = ("d2t", "t2d")
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_AGAIN = "Download it again, or export it anew from the training run."


def check_names(opened: Opened) -> Iterator[Finding]:
    """Weights that the network has, and others."""
    if opened.network is None:
        return
    expected = _expected(opened)
    missing = sorted(set(expected) - set(opened.weights) - {"t2d"})  # t2d says what d2t says
    unexpected = sorted(set(opened.weights) - set(expected))
    if missing:
        yield error(
            "missing weights",
            f"it lacks {few(missing)}",
            "These layers would draft from random numbers, so nothing loads it.",
            _AGAIN,
        )
    if unexpected:
        yield error(
            "unexpected weights",
            f"it has {few(unexpected)}, which {opened.method} does not",
            "It is of another method or version than its config.json says, or belongs to another checkpoint.",
            "Check that config.json and weights come from the same place.",
        )


def check_shapes(opened: Opened) -> Iterator[Finding]:
    """Each weight against what config.json asks for; the rows of head and embedding are the vocabulary's."""
    expected = _expected(opened)
    for name, weight in opened.weights.items():
        if name in _MAPS or name not in expected or weight.shape == expected[name].shape:
            continue
        came, wanted = list(weight.shape), list(expected[name].shape)
        what = f"{name} has shape {came}, but config.json asks for {wanted}"
        if name in (_HEAD, _EMBEDDING) and came[1:] == wanted[1:]:
            yield _rows(name, came[0], wanted[0])
        else:
            yield error("misshapen weights", what, "It cannot be loaded.", "Use the config.json that it was made with.")


def _rows(name: str, came: int, wanted: int) -> Finding:
    if name == _HEAD:
        return error(
            "head rows",
            f"{name} has {came} rows, but draft_vocab_size is {wanted}",
            "Every drafted token would be the wrong word, or past the end of the map to the target's.",
            "Set draft_vocab_size to the head's rows, with a d2t of as many, or restore the head.",
        )
    return error(
        "embedding",
        f"{name} has {came} rows, but the vocabulary has {wanted}",
        "Tokens at the end of the vocabulary could not be read.",
        "Restore the embedding, or remove it so that the target's is used.",
    )


def check_numbers(opened: Opened) -> Iterator[Finding]:
    """NaN and infinity, and weights that hold nothing but zeros."""
    floats = _plain_floats(opened)
    bad = sorted(name for name, weight in floats.items() if not weight.isfinite().all())
    if bad:
        yield error(
            "NaN or infinity",
            f"{few(bad)} holds values that are no numbers",
            "The training diverged, or the file was damaged; nothing drafted with it is of use.",
            "Go back to an earlier checkpoint of the run, or download it again.",
        )
    zero = sorted(name for name, weight in floats.items() if weight.numel() and not weight.any())
    if zero:
        yield error(
            "all zeros",
            f"{few(zero)} holds nothing but zeros",
            "The weight was never loaded or never trained (an export that lost a name leaves such ones).",
            "Export it anew, and compare the names with those of the training checkpoint.",
        )


def check_dtypes(opened: Opened) -> Iterator[Finding]:
    """One kind of floating-point numbers, that which config.json names."""
    kinds = Counter(str(w.dtype).removeprefix("torch.") for n, w in opened.weights.items() if n not in _MAPS)
    odd = sorted(name for name, weight in opened.weights.items() if name not in _MAPS and not _is_plain(weight))
    if odd:
        yield error(
            "dtype",
            f"{few(odd)} is stored as {opened.weights[odd[0]].dtype}".replace("torch.", ""),
            "These are quantised or packed numbers, which are not read here.",
            "Use the checkpoint in bfloat16, float16 or float32.",
        )
    elif len(kinds) > 1:
        counts = ", ".join(f"{count} of {kind}" for kind, count in kinds.most_common())
        yield warning(
            "dtype",
            f"its weights are of several kinds ({counts})",
            "A part was saved by another step than the rest, and may be older or newer than it.",
            "Export all of it from one step of the training.",
        )
    said = next((v for key in ("dtype", "torch_dtype") if (v := opened.stored.get(key) or opened.plain.get(key))), None)
    if said is not None and len(kinds) == 1 and said not in kinds:
        yield warning(
            "dtype",
            f"config.json says {said}, but the weights are {next(iter(kinds))}",
            "A server that believes config.json allots another amount of memory, or rounds the weights.",
            f"Set dtype to {next(iter(kinds))}.",
        )


def _expected(opened: Opened) -> dict[str, Tensor]:
    return {} if opened.network is None else dict(opened.network.state_dict())


def _plain_floats(opened: Opened) -> dict[str, Tensor]:
    return {name: weight for name, weight in opened.weights.items() if _is_plain(weight)}


def _is_plain(weight: Tensor) -> bool:
    return weight.dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
