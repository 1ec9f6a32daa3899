"""Labels: what each block size did on a prompt, and what a policy could have known of the prompt beforehand.

A folder has `settings.json` and one safetensors file for every prompt, named after it; its metadata say which prompt,
and what the models were when it was made (dtype, device, node budget). Tensors:

    logits          Float32[v]    the target's raw logits after the last prompt token
    features        Float32[f]    the drafter's features of the last prompt token (empty for a drafter without)
    hidden          Float32[h]    the output of the target's last layer there
    block_sizes     Int64[k]      anchor included, ascending
    rounds          Int64[k]      rounds that the whole answer took with each
    accepted        Int64[k]      drafted tokens that those rounds kept, bonus excluded
    tokens          Int64[k]      tokens of the answer: the same for each, but for near-ties in bfloat16
    prefill_s       Float64[k]    seconds until the first token
    decode_s        Float64[k]    seconds of the rounds
    draft_s         Float64[k]    seconds of those that the drafter took, growth of trees included
    verify_s        Float64[k]    seconds of those that the target took

Letters: k block sizes, v vocabulary, f width of the features, h hidden size.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.errors import CheckpointError, InputError
from paceline.metrics import acceptance_length, tokens_per_s
from paceline.prompts import Prompt
from paceline.records import RECORDING, read_json
from paceline.tensor_files import save_tensors

_ABOUT = ("prompt_id", "set_name", "prompt_sha256")
_PAIR = frozenset({"target_digest", "drafter_digest", "chat_template_sha256"})
_INTEGERS = ("block_sizes", "rounds", "accepted", "tokens")
_SECONDS = ("prefill_s", "decode_s", "draft_s", "verify_s")
_INPUTS = ("logits", "features", "hidden")
_TENSORS = (*_INPUTS, *_INTEGERS, *_SECONDS)
_NAME = 24
"""Digits of a prompt's digest that name its file."""
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Label:
    """One prompt's file, as the module's docstring says. `prompt_sha256` is that of the prompt's text."""

    prompt_id: str
    set_name: str
    prompt_sha256: str
    made_with: dict[str, Any]
    logits: Tensor
    features: Tensor
    hidden: Tensor
    block_sizes: Tensor
    rounds: Tensor
    accepted: Tensor
    tokens: Tensor
    prefill_s: Tensor
    decode_s: Tensor
    draft_s: Tensor
    verify_s: Tensor

    @property
    def acceptance_length(self) -> Tensor:
        """Float64[k]: mean tokens per round, bonus included (tau)."""
        pairs = zip(self.accepted.tolist(), self.rounds.tolist(), strict=True)
        return torch.tensor([acceptance_length(*pair) for pair in pairs], dtype=torch.float64)

    @property
    def tokens_per_s(self) -> Tensor:
        """Float64[k]: tokens of the answer over the seconds from prompt to last token."""
        pairs = zip(self.tokens.tolist(), (self.prefill_s + self.decode_s).tolist(), strict=True)
        return torch.tensor([tokens_per_s(*pair) for pair in pairs], dtype=torch.float64)


def held_out_share(label: Label) -> float:
    """A number within 0..1 that depends on the prompt's text alone: the same split whatever else is labelled."""
    return int(label.prompt_sha256[:16], 16) / 2**64


def label_path(folder: Path, prompt: Prompt) -> Path:
    """Where a prompt's label lies: named after its text, so that no prompt is decoded twice."""
    return folder / f"{prompt_digest(prompt)[:_NAME]}.safetensors"


def prompt_digest(prompt: Prompt) -> str:
    """SHA-256 of a prompt's text."""
    return hashlib.sha256(prompt.text.encode()).hexdigest()


def write_label(path: Path, label: Label) -> None:
    """Write so that a reader sees the whole file or none."""
    about = {name: getattr(label, name) for name in _ABOUT}
    about["made_with"] = json.dumps(label.made_with)
    save_tensors(path, {name: getattr(label, name) for name in _TENSORS}, about)


def read_label(path: Path) -> Label:
    """Read one label.

    Raises:
        CheckpointError: a file that is damaged, or is no label.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            missing = sorted(set(_TENSORS) - set(file.keys())) + sorted({*_ABOUT, "made_with"} - set(about))
            if len(missing) == len(_TENSORS) + len(_ABOUT) + 1:
                raise CheckpointError(f"{path} is no label; give a folder that `paceline label` made.")
            if missing:
                raise CheckpointError(f"{path} is no label: it lacks {', '.join(missing)}; delete it and label again.")
            made_with = json.loads(about["made_with"])
            tensors = {name: file.get_tensor(name) for name in _TENSORS}
            label = Label(about["prompt_id"], about["set_name"], about["prompt_sha256"], made_with, **tensors)
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the label {path} cannot be read ({error}); delete it and label again.") from error
    _check(path, label)
    return label


def read_labels(folder: Path) -> list[Label]:
    """Every label of a folder, by file name; all of one making.

    Raises:
        CheckpointError: no labels there, a damaged one, or labels that were made in different ways.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder} holds no labels; give a folder that `paceline label --out` made.")
    labels = [read_label(path) for path in paths]
    for path, label in zip(paths, labels, strict=True):
        if path.stem != label.prompt_sha256[:_NAME]:
            raise CheckpointError(f"{path} holds the label of another prompt; delete it.")
    check_alike(labels, folder)
    return labels


def with_rounds(labels: Sequence[Label]) -> list[Label]:
    """The labels of answers that took a round: an answer of one token has no best size.

    Raises:
        InputError: there are none.
    """
    found = [label for label in labels if bool((label.rounds > 0).any())]
    if not found:
        raise InputError("every labelled answer ended with its first token, before any round; label longer answers.")
    return found


def check_alike(labels: Sequence[Label], where: Path) -> None:
    """Refuse labels that do not go together: of different block sizes, models, dtypes or devices, or of one prompt.

    Raises:
        CheckpointError: the first difference.
    """
    seen: set[str] = set()
    for label in labels:
        if label.prompt_sha256 in seen:
            raise CheckpointError(f"{where} has a prompt that is labelled twice ({label.prompt_id}); keep one of them.")
        seen.add(label.prompt_sha256)
        for what, of in _ALIKE.items():
            if of(label) != of(labels[0]):
                raise CheckpointError(
                    f"{where} has labels of {what} {of(labels[0])} and of {of(label)}; keep them apart."
                )


_ALIKE: Mapping[str, Callable[[Label], Any]] = {
    "block sizes": lambda label: label.block_sizes.tolist(),
    "the making": lambda label: label.made_with,
    "inputs of sizes": lambda label: [len(getattr(label, name)) for name in _INPUTS],
}


def recorded_pair(folder: Path) -> dict[str, Any]:
    """The settings of a folder of labels, which name the pair that they were made with.

    Raises:
        CheckpointError: settings that cannot be read, or that lack the pair.
    """
    settings = read_json(folder / RECORDING)
    if missing := sorted(_PAIR - set(settings)):
        raise CheckpointError(f"{folder / RECORDING} lacks {', '.join(missing)}; label the prompts again.")
    return settings


def _check(path: Path, label: Label) -> None:
    shape = label.block_sizes.shape
    columns = {name: getattr(label, name) for name in (*_INTEGERS, *_SECONDS)}
    fits = len(shape) == 1 and shape[0] > 0 and all(column.shape == shape for column in columns.values())
    fits = fits and all(columns[name].dtype == torch.int64 for name in _INTEGERS)
    fits = fits and all(columns[name].dtype == torch.float64 for name in _SECONDS)
    fits = fits and all(getattr(label, name).dim() == 1 for name in _INPUTS) and len(label.logits) > 0
    fits = fits and all(getattr(label, name).dtype == torch.float32 for name in _INPUTS)
    if not fits or not _DIGEST.fullmatch(label.prompt_sha256):
        raise CheckpointError(f"{path} disagrees with itself in shapes or types; delete it and label again.")
    sizes = label.block_sizes.tolist()
    counts = bool((label.tokens >= 1).all() and (label.rounds >= 0).all() and (label.accepted >= 0).all())
    times = all(bool(columns[name].isfinite().all() and (columns[name] >= 0).all()) for name in _SECONDS)
    known = all(bool(getattr(label, name).isfinite().all()) for name in _INPUTS)
    possible = sizes[0] >= 2 and sizes == sorted(set(sizes)) and bool((label.prefill_s > 0).all())
    if not (counts and times and known and possible):
        raise CheckpointError(f"{path} holds numbers that cannot be; delete it and label again.")
