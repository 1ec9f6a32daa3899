"""Checks that the configs of all draft networks share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.errors import InputError


def require(holds: bool, name: str, value: object, expected: str) -> None:
    """Refuse a value in one sentence.

    Raises:
        InputError: it does not hold.
    """
    if not holds:
        raise InputError(f"{name} is {value!r}, but must be {expected}.")


MOST_ROWS = 4096
"""Rows of a block, and slots and heads: as many as a request may ask for nodes."""
_MOST = 2**20
_MOST_OF = {"max_position_embeddings": 2**31, "num_hidden_layers": 1024}
"""What no network has more of: a damaged config should not be built."""


def check_counts(config: Any, counts: Iterable[str]) -> None:
    """Counts of at least one, and of what a network may have.

    Raises:
        InputError: a count outside of that.
    """
    for name in counts:
        most, value = _MOST_OF.get(name, _MOST), getattr(config, name)
        require(1 <= value <= most, name, value, f"at least 1 and at most {most}")


def check_network(config: Any, counts: Iterable[str]) -> None:
    """Counts of at least one, heads that share keys evenly, a positive epsilon, tapped layers that the target has.

    Raises:
        InputError: sizes that do not fit together.
    """
    check_counts(config, counts)
    require(config.rms_norm_eps > 0, "rms_norm_eps", config.rms_norm_eps, "positive")
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    require(heads % groups == 0, "num_attention_heads", heads, f"a multiple of num_key_value_heads ({groups})")
    check_taps(config)
    config.rope.rotary_dim(config.head_dim)


def check_taps(config: Any) -> None:
    """Tapped layers that the target has, each once.

    Raises:
        InputError: there are none, or others.
    """
    ids = config.target_layer_ids
    holds = len(set(ids)) == len(ids) > 0 and all(0 <= i < config.num_target_layers for i in ids)
    expected = f"one or more distinct layers of the target's {config.num_target_layers}, counted from 0"
    require(holds, "target_layer_ids", list(ids), expected)


def check_words(config: Any) -> None:
    """A draft vocabulary within the target's, and the target's width where its embedding or head is borrowed.

    Raises:
        InputError: they do not fit.
    """
    reduced = config.draft_vocab_size
    fits = reduced is None or 1 <= reduced <= config.vocab_size
    require(fits, "draft_vocab_size", reduced, f"between 1 and the target's {config.vocab_size}")
    borrows = not (config.has_embedding and config.has_head)
    alike = config.hidden_size == config.target_hidden_size or not borrows
    expected = f"the target's ({config.target_hidden_size}) where it borrows the target's embedding or head"
    require(alike, "hidden_size", config.hidden_size, expected)
