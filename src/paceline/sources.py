"""From names to what lies on disk: folders of targets and drafters, tokenizers, and the digests that identify them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import AutoTokenizer

from paceline.checkpoints.digest import checkpoint_digest
from paceline.checkpoints.files import OLDER_WEIGHTS, expanded
from paceline.embedded import DRAFTER_KINDS, embedded_drafter, embedded_target
from paceline.errors import CheckpointError

#: What may be given in place of a path to a drafter.
NO_DRAFTER, PROMPT_LOOKUP = "none", "prompt_lookup"
_BESIDE_WEIGHTS = ["*.json", "*.txt", "*.model", "*.jinja"]
"""Files of a checkpoint that are small: its config and its tokenizer."""


def target_path(name: str | None) -> str:
    if name is None:
        return str(embedded_target())
    path = expanded(name)
    looks_local = name.startswith((".", "/", "~")) or path.exists()
    if looks_local and not (path / "config.json").is_file():
        raise CheckpointError(
            f"the target {name!r} has no config.json; give a Hugging Face model folder or a hub name."
        )
    return str(path) if looks_local else name


def target_folder(name: str | None, weights: bool = True) -> Path:
    """The folder of a target's checkpoint; a hub name is fetched once, without its weights where they are not wanted;
    None is the embedded target."""
    path = target_path(name)
    patterns = [*_BESIDE_WEIGHTS, "*.safetensors"] if weights else _BESIDE_WEIGHTS
    return Path(path) if Path(path).exists() else _fetch("target", path, patterns)


def drafter_path(name: str) -> Path:
    """A folder as it is; the kind of a drafter that comes with us is that one, and a name like `organisation/model` is
    fetched from the hub once."""
    path = expanded(name)
    if name in (NO_DRAFTER, PROMPT_LOOKUP) and not path.exists():
        raise CheckpointError(f"{name!r} has no checkpoint; name the folder or hub name of a draft network.")
    if name in DRAFTER_KINDS and not path.exists():
        return embedded_drafter(name)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return path
    return _fetch("drafter", name, [*_BESIDE_WEIGHTS, "*.safetensors", OLDER_WEIGHTS])


def default_drafter(target: str | None) -> str:
    return str(embedded_drafter()) if target is None else PROMPT_LOOKUP


def _fetch(what: str, name: str, patterns: list[str]) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds for an unknown name or no network
        raise CheckpointError(
            f"the {what} {name!r} is no folder here and cannot be fetched from the hub: {first_line(error)}"
        ) from error


def load_tokenizer(name: str | None) -> Any:
    """The target's tokenizer."""
    path = target_path(name)
    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:
        raise CheckpointError(f"the tokenizer of {path!r} cannot be loaded: {first_line(error)}") from error


def pair_digests(target: str | None, drafter: str | None) -> dict[str, str]:
    """What identifies a target, its chat template and a drafter, named as for `load`."""
    name = default_drafter(target) if drafter is None else drafter
    return {
        "target_digest": checkpoint_digest(target_folder(target)),
        "drafter_digest": name if name in (PROMPT_LOOKUP, NO_DRAFTER) else checkpoint_digest(drafter_path(name)),
        "chat_template_sha256": template_digest(load_tokenizer(target).chat_template),
    }


def template_digest(template: str | None) -> str:
    """What identifies a chat template in checkpoints and reports."""
    return hashlib.sha256((template or "").encode()).hexdigest()[:16]


def tokenizer_digest(tokenizer: Any) -> str:
    """What identifies a tokenizer's words and their numbers."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def differing_tokens(tokenizer: Any, other: Any) -> list[int]:
    """Numbers that mean other words to two tokenizers; those that one of them alone has are not looked at."""
    ours, theirs = ({number: word for word, number in each.get_vocab().items()} for each in (tokenizer, other))
    return sorted(number for number in ours.keys() & theirs.keys() if ours[number] != theirs[number])


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
