"""All checks of a drafter's checkpoint, and what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints.files import CONFIG, few, read_config
from paceline.doctor.beside_target import (
    TargetFacts,
    check_mask_word,
    check_positions,
    check_rope,
    check_sizes,
    check_template,
    check_tokenizer,
)
from paceline.doctor.finding import Finding, Severity, error, warning
from paceline.doctor.opened import Opened, open_checkpoint
from paceline.doctor.rope import check_frequencies, check_style
from paceline.doctor.vocabulary import check_borrowed, check_d2t, check_mask, check_t2d
from paceline.doctor.weights import check_dtypes, check_names, check_numbers, check_shapes
from paceline.errors import CheckpointError, UnsupportedModelError

_ALONE: tuple[Callable[[Opened], Iterator[Finding]], ...] = (
    check_names,
    check_shapes,
    check_numbers,
    check_dtypes,
    check_d2t,
    check_t2d,
    check_mask,
    check_borrowed,
    check_style,
    check_frequencies,
)
_BESIDE: tuple[Callable[[Opened, TargetFacts], Iterator[Finding]], ...] = (
    check_sizes,
    check_rope,
    check_positions,
    check_mask_word,
    check_tokenizer,
    check_template,
)


@dataclass
class Report:
    """What a checkpoint is, a line for each fact, and what was found; `opened` is None where it cannot be read."""

    path: Path
    opened: Opened | None
    facts: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def has_errors(self) -> bool:
        """Whether something keeps it from being of use."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def examine(path: Path, target: TargetFacts | None) -> Report:
    """Every check that needs no pass of a model; those beside a target only where one is given.

    Raises:
        CheckpointError: `path` is no folder, or has no config.json.
        InputError: it holds a whole language model.
    """
    if not (path / CONFIG).is_file():
        read_config(path)  # says what is wrong
    try:
        opened = open_checkpoint(path, None if target is None else target.num_layers)
    except CheckpointError as problem:
        return Report(path, None, findings=[_unreadable(str(problem))])
    except UnsupportedModelError as problem:
        return Report(path, None, findings=[_unsupported(str(problem))])
    findings = [finding for check in _ALONE for finding in check(opened)]
    if target is not None:
        findings += [finding for check in _BESIDE for finding in check(opened, target)]
    report = Report(path, opened, _facts(opened), findings)
    if opened.complaint is not None and not report.has_errors:
        unsupported = isinstance(opened.complaint, UnsupportedModelError)
        report.findings.append((_unsupported if unsupported else _unusable)(str(opened.complaint)))
    return report


def _unreadable(problem: str) -> Finding:
    return error(
        "files",
        problem.removesuffix("."),
        "It is not whole, or not a drafter's checkpoint of a dialect that is known.",
        "Download it again, or look whether it is what you meant.",
    )


def _unsupported(problem: str) -> Finding:
    return warning(
        "support",
        problem.removesuffix("."),
        "It may be sound, but paceline cannot draft with it.",
        "Serve it elsewhere, or choose another drafter.",
    )


def _unusable(complaint: str) -> Finding:
    return error(
        "config",
        complaint.removesuffix("."),
        "No network can be made of this config.json.",
        "Restore the config.json that the weights were saved with.",
    )


def _facts(opened: Opened) -> dict[str, str]:
    """Names and values of what a reader wants to know first."""
    weights = opened.weights
    count = sum(weight.numel() for weight in weights.values() if weight.is_floating_point())
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    kinds = sorted({str(w.dtype).removeprefix("torch.") for w in weights.values() if w.is_floating_point()})
    facts = {
        "method": opened.method,
        "dialect": opened.form,
        "parameters": f"{count / 1e6:.2f} M in {few(kinds)}, {size / 1e6:.1f} MB",
    }
    return facts | (_network_facts(opened) if opened.network is not None else {})


def _network_facts(opened: Opened) -> dict[str, str]:
    config = opened.config
    depth = f" of {config.num_target_layers}" if opened.says_depth else ""
    taps = f"{', '.join(map(str, config.target_layer_ids))}{depth} (their outputs, counted from 0)"
    if not opened.names_taps and not opened.says_depth:
        taps = "not named: a low, a middle and a high one of its target"
    facts = (_attention_facts(config) if hasattr(config, "rope") else {}) | {
        "tapped layers": taps,
        "vocabulary": f"{config.vocab_size} of the target, {config.draft_vocab_size or 'all'} drafted",
        "embedding": "its own" if config.has_embedding else "the target's",
        "head": "its own" if config.has_head else "the target's",
    }
    own = {
        "block_size": "block size, anchor included",
        "mask_token_id": "mask token",
        "num_slots": "slots of a block",
        "norm_before_residual": "norm before residual",
        "num_heads": "heads",
    }
    return facts | {said: str(getattr(config, key)) for key, said in own.items() if hasattr(config, key)}


def _attention_facts(config: Any) -> dict[str, str]:
    rope = config.rope
    scaling = "" if rope.scaling is None else f", {type(rope.scaling).__name__}"
    part = "" if rope.partial_rotary_factor == 1 else f", {rope.partial_rotary_factor:g} of each head"
    return {
        "layers": f"{config.num_hidden_layers}, {config.hidden_size} wide, {config.num_attention_heads} heads "
        f"({config.num_key_value_heads} of keys and values)",
        "RoPE": f"theta {rope.theta:g}{scaling}{part}",
        "max positions": str(config.max_position_embeddings),
    }
