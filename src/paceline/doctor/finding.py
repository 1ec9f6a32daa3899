"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """ERROR: it does not load, or drafts nonsense. WARNING: it works, and may accept less than it could."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One fault: which check found it, what is there, what that means, and what to do. One that is provisional stands
    only until it is measured."""

    check: str
    severity: Severity
    what: str
    meaning: str
    action: str
    is_provisional: bool = False


def error(check: str, what: str, meaning: str, action: str) -> Finding:
    """A finding that keeps the checkpoint from being of use."""
    return Finding(check, Severity.ERROR, what, meaning, action)


def warning(check: str, what: str, meaning: str, action: str) -> Finding:
    """A finding that may cost acceptance."""
    return Finding(check, Severity.WARNING, what, meaning, action)


def until_measured(check: str, what: str, meaning: str, action: str) -> Finding:
    """A finding that may cost acceptance, unless measuring shows that it does not."""
    return Finding(check, Severity.WARNING, what, meaning, action, is_provisional=True)
