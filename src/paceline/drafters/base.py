"""What the loop needs of a drafter.

A drafter is stateless; what it remembers of the sequences of a batch is a state that the loop holds, with
rows that move as the cache's rows move. Features reach it as values.

Letters: b rows, n tokens, f width of the features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.metrics import StageClock
from paceline.tree import DraftTree


class DraftState(Protocol):
    """What a drafter remembers of each row of a batch.

    `save` copies what it knows of a row's committed tokens, and `restore` puts the first `length` of them into an
    empty row: a prompt that begins as an earlier sequence is not read again.
    """

    def reserve(self, num_rows: int, num_slots: int) -> None: ...
    def move(self, source: int, destination: int) -> None: ...
    def clear(self, row: int) -> None: ...
    def save(self, row: int) -> Any: ...
    def restore(self, row: int, saved: Any, length: int) -> None: ...


class NoState:
    """The state of a drafter that looks at the tokens only."""

    def reserve(self, num_rows: int, num_slots: int) -> None:
        pass

    def move(self, source: int, destination: int) -> None:
        pass

    def clear(self, row: int) -> None:
        pass

    def save(self, row: int) -> None:
        return None

    def restore(self, row: int, saved: None, length: int) -> None:
        pass


@dataclass(frozen=True)
class DraftRequest:
    """What is asked of a drafter for one row: the committed tokens (the last is the anchor) and how much.

    A block of one, the anchor alone, asks for nothing of a network. `max_depth` bounds the useful depth (tokens still
    wanted); a `tree_budget` of 0 asks for no nodes. `temperature` and `seed` are the request's: at a temperature above
    0 they tell the noise that the target will use.
    """

    tokens: Sequence[int]
    block_size: int
    tree_budget: int
    max_depth: int
    temperature: float = 0.0
    seed: int = 0

    @property
    def wants_nodes(self) -> bool:
        return self.tree_budget > 0 and self.max_depth > 0


class Drafter(ABC):
    """Proposes a tree for each sequence of a batch.

    `feature_layers` are the target layers whose outputs it reads (empty: none). `num_readable` are the tokens that it
    can read (None: all of the target's). `default_block_size` and `default_tree_budget` apply where neither the request
    nor the policy says otherwise.
    """

    name: str
    feature_layers: tuple[int, ...] = ()
    num_readable: int | None = None
    default_block_size: int
    default_tree_budget: int

    @property
    def drafting(self) -> str:
        """Its name, and how its trees grow where that may differ: what its times depend on."""
        return self.name

    @abstractmethod
    def new_state(self, num_rows: int, num_slots: int, device: torch.device) -> Any:
        """A `DraftState` of empty rows."""

    @abstractmethod
    def observe(self, state: Any, first_row: int, features: Float[Tensor, "b n f"], counts: Sequence[int]) -> None:
        """Read the features of newly committed tokens: the first `counts[i]` of row `first_row + i`."""

    @abstractmethod
    def draft(self, state: Any, requests: Sequence[DraftRequest], clock: StageClock) -> list[DraftTree]:
        """A tree for each of rows 0 .. len(requests)-1; time spent goes to the stages draft and grow."""

    def extend(
        self,
        state: Any,
        requests: Sequence[DraftRequest],
        trees: Sequence[DraftTree],
        chosen: Sequence[bool],
        clock: StageClock,
    ) -> list[DraftTree]:
        """Let the trees that are chosen go on past the end of their blocks, where this drafter can; their sizes stay
        within what was asked for."""
        return list(trees)
