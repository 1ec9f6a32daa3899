"""`paceline demo`: plain against drafted decoding on the embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Arguments:
    """Show plain and drafted decoding of the embedded model side by side: same text, more tokens/s."""

    prompt: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="PROMPT")] = None
    """The prompt; one of ours where not given."""
    max_tokens: int = 128
    """Longest answer, in tokens."""
    tree_budget: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Nodes of the draft tree, root excluded; the drafter's own where not given."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """CPU threads; PyTorch's choice where not given."""
