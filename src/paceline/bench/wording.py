"""Numbers in sentences, titles and names of files."""

from __future__ import annotations


def shown(value: float) -> str:
    """A setting's value, every digit of it."""
    return str(int(value)) if value == int(value) else str(value)


def counted(number: int, what: str) -> str:
    """`1 answer`, `2 answers`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
