"""Checks of a drafter against the target that it is to draft for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoints.draft_weights import METADATA, check_fits
from paceline.checkpoints.rope_keys import parse_rope
from paceline.checkpoints.target_weights import read_target_config
from paceline.doctor.finding import Finding, error, until_measured, warning
from paceline.doctor.opened import Opened
from paceline.errors import CheckpointError, InputError
from paceline.models.rope import RopeConfig
from paceline.sources import differing_tokens, load_tokenizer, target_folder, template_digest, tokenizer_digest


@dataclass(frozen=True)
class TargetFacts:
    """What a target's folder says: its `config.json`, its rotary embedding (None: of a kind that is not known here),
    and its tokenizer."""

    name: str
    folder: Path
    config: Mapping[str, Any]
    rope: RopeConfig | None
    tokenizer: Any

    @property
    def num_layers(self) -> int:
        return int(self.config["num_hidden_layers"])


def read_target(name: str | None) -> TargetFacts:
    """The facts of a target, named as for `load`.

    Raises:
        InputError: there is no such target, or its config.json is not that of a language model.
    """
    folder = target_folder(name, weights=False)
    config = read_target_config(folder)
    try:
        rope = parse_rope(config, folder)
    except InputError:
        rope = None
    return TargetFacts(name or folder.name, folder, config, rope, load_tokenizer(name))


def check_sizes(opened: Opened, target: TargetFacts) -> Iterator[Finding]:
    """Width, vocabulary and depth of the target that it was made for."""
    if opened.network is None:
        return
    hidden, vocabulary, depth = (target.config[key] for key in ("hidden_size", "vocab_size", "num_hidden_layers"))
    try:
        check_fits(opened.config, hidden, vocabulary, depth, target.name)
    except CheckpointError as problem:
        yield error(
            "target",
            str(problem).split(";")[0].removesuffix("."),
            "It reads other numbers than it learned from, or writes other words.",
            "Give the target that it was trained for.",
        )


def check_rope(opened: Opened, target: TargetFacts) -> Iterator[Finding]:
    """Whether positions turn in the drafter as in the target, from which training starts."""
    if not hasattr(opened.config, "rope") or target.rope in (None, opened.config.rope):
        return
    yield until_measured(
        "RoPE",
        f"its rotary embedding is {_spelled(opened.config.rope)}, but the target's is {_spelled(target.rope)}",
        "Most drafters are trained with their target's, but not all; one that is served with another than it was "
        "trained with accepts less.",
        "Let the doctor measure which it was.",
    )


def check_positions(opened: Opened, target: TargetFacts) -> Iterator[Finding]:
    """How far both reach."""
    own, reach = opened.plain.get("max_position_embeddings"), target.config.get("max_position_embeddings")
    if isinstance(own, int) and isinstance(reach, int) and own < reach:
        yield warning(
            "max positions",
            f"max_position_embeddings is {own}, but the target's is {reach}",
            f"Servers cut the context of both to {own}; past it the drafter was not trained.",
            "Serve shorter contexts, or train on longer ones and raise it.",
        )


def check_mask_word(opened: Opened, target: TargetFacts) -> Iterator[Finding]:
    """A mask token that texts use is no mask."""
    mask = getattr(opened.config, "mask_token_id", None)
    if mask is None or mask >= len(target.tokenizer) or mask in target.tokenizer.all_special_ids:
        return
    if mask in target.tokenizer.added_tokens_decoder:
        return
    yield warning(
        "mask token",
        f"mask_token_id {mask} is {target.tokenizer.convert_ids_to_tokens(mask)!r}, which texts use",
        "The drafter cannot tell an empty slot from this word; most likely another id was meant.",
        "Set it to the token that the drafter was trained with.",
    )


def check_tokenizer(opened: Opened, target: TargetFacts) -> Iterator[Finding]:
    """The tokenizer recorded at training, or lying beside the checkpoint."""
    recorded, own = _recorded(opened, "tokenizer_sha256"), tokenizer_digest(target.tokenizer)
    found = []
    if recorded is not None and recorded != own:
        found.append(f"the tokenizer recorded at training ({recorded}) is not the target's ({own})")
    if (opened.path / "tokenizer.json").is_file():
        differing = differing_tokens(target.tokenizer, load_tokenizer(str(opened.path)))
        if differing:
            found.append(f"to the tokenizer that lies beside it, {len(differing)} tokens are other words")
    for what in found:
        yield error(
            "tokenizer",
            what,
            "The same number is another word for the two, so drafts are nonsense to the target.",
            "Give the target that it was trained for.",
        )


def check_template(opened: Opened, target: TargetFacts) -> Iterator[Finding]:
    """The chat template recorded at training."""
    recorded, own = _recorded(opened, "chat_template_sha256"), template_digest(target.tokenizer.chat_template)
    if recorded is not None and recorded != own:
        yield warning(
            "chat template",
            f"it was trained under the chat template {recorded}, but the target's is {own}",
            "It meets other words around every turn than it learned from, and accepts far less.",
            "Serve it under the template of its training, or train it on with this one.",
        )


def _recorded(opened: Opened, key: str) -> Any:
    metadata = opened.stored.get(METADATA)
    return metadata.get(key) if isinstance(metadata, dict) else None


def _spelled(rope: RopeConfig) -> str:
    scaling = "no scaling" if rope.scaling is None else repr(rope.scaling)
    part = "" if rope.partial_rotary_factor == 1 else f", {rope.partial_rotary_factor:g} of each head"
    return f"theta {rope.theta:g}, {scaling}{part}"
