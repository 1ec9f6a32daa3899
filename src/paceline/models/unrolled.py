"""What draft networks share that go on from their own states: SpecBlock and EAGLE-3.

A block stands for a position that the target has read, or for one that was drafted. It has K slots (EAGLE-3's has one),
which see all rows of earlier positions and one another as the network says, and each of them drafts a token. A later
block starts from a slot: from its hidden state, which takes the place of the features that nobody has computed yet, and
the token that it drafted. It sees what that slot saw, and itself. Keys and values of a position that the target has
read never change.

Both forms, that over whole texts which learns and that with a cache which serves, are made of the same two steps,
`blocks` and `later`.

Letters: b sequences, n positions, k slots of a position, m blocks, c blocks that start, s rows (slots of all of them),
q rows that are chosen, u rows that there are, h hidden, f width of the features, w draft vocabulary, d any width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import pad

from paceline.models.attention import Visible
from paceline.models.draft_network import DraftNetwork
from paceline.models.layers import KeysValues

Store = Callable[[int, Tensor, Tensor], KeysValues]
"""(layer, keys and values of new rows) -> those of all rows, the new ones last."""

Chosen = tuple[Int64[Tensor, "b m"], Bool[Tensor, "b m k u"]]
"""Positions by their places in a pass, and which of all rows each of their slots sees."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of a batch, from each of whose slots others may start.

    `positions` are those that the blocks stand for; `seen` says which of all rows each slot sees. `condition` is what
    the first block of each was made from.
    """

    hidden: Float[Tensor, "b m k h"]
    condition: Float[Tensor, "b m h"]
    positions: Int64[Tensor, "b m"]
    seen: Bool[Tensor, "b m k u"]

    def then(self, more: Blocks) -> Blocks:
        """These, and others whose rows came after."""
        seen = pad(self.seen, (0, more.seen.shape[-1] - self.seen.shape[-1]))
        return Blocks(
            torch.cat((self.hidden, more.hidden), 1),
            torch.cat((self.condition, more.condition), 1),
            torch.cat((self.positions, more.positions), 1),
            torch.cat((seen, more.seen), 1),
        )


class UnrolledShape(Protocol):
    """What the config of such a network says of it and of what it reads."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...


class UnrolledNetwork(DraftNetwork, ABC):
    """A draft network of blocks that follow one another."""

    config: UnrolledShape
    num_slots: int
    """Slots of a block (K)."""

    @abstractmethod
    def condition(self, features: Float[Tensor, "b n f"]) -> Float[Tensor, "b n h"]:
        """What blocks at positions that the target has read start from; features may be of another dtype."""

    @abstractmethod
    def slot_states(
        self,
        condition: Float[Tensor, "b n h"],
        tokens: Int64[Tensor, "b n"],
        positions: Int64[Tensor, "b n"],
        store: Store,
        visible: Visible,
        chosen: Chosen | None = None,
    ) -> Float[Tensor, "b m k h"]:
        """Hidden states, before the last norm, of the slots of positions.

        `tokens[i]` is the token after position i; `visible` says which rows each of the slots' rows sees. `chosen`
        asks for some of the positions alone, of which it says what their slots see.
        """

    def later_condition(
        self, inherited: Float[Tensor, "b c h"], condition: Float[Tensor, "b c h"]
    ) -> Float[Tensor, "b c h"]:
        """What a later block starts from: the hidden state of the slot before it, or what the first one did."""
        return inherited

    def blocks(
        self,
        features: Float[Tensor, "b n f"],
        tokens: Int64[Tensor, "b n"],
        positions: Int64[Tensor, "b n"],
        store: Store,
        visible: Visible,
        places: Int64[Tensor, "b m"],
        seen: Bool[Tensor, "b m k u"],
    ) -> Blocks:
        """Blocks at `places` of these positions, which the target has read. Of the others, which later ones see, only
        keys and values are computed in the last layer.

        `tokens[i]` is the token after position i; `visible` says which rows each of the slots' rows sees, and `seen`
        says it of those at `places`.
        """
        condition = self.condition(features)
        hidden = self.slot_states(condition, tokens, positions, store, visible, (places, seen))
        return Blocks(hidden, chosen_rows(condition, places), chosen_rows(positions, places), seen)

    def later(
        self,
        blocks: Blocks,
        parents: Int64[Tensor, "b c"],
        slots: Int64[Tensor, "b c"],
        tokens: Int64[Tensor, "b c"],
        store: Store,
    ) -> Blocks:
        """Blocks that start from slot `slots[i]` of block `parents[i]`, which drafted `tokens[i]`.

        Their rows come after all that `blocks.seen` tells of.
        """
        count, size = parents.shape[1], self.num_slots
        row = torch.arange(len(parents), device=parents.device)[:, None]
        first = blocks.condition[row, parents]
        condition = self.later_condition(blocks.hidden[row, parents, slots], first)
        positions = blocks.positions[row, parents] + 1 + slots
        before = blocks.seen[row, parents, slots][:, :, None].expand(-1, -1, size, -1)
        own = torch.eye(count, dtype=torch.bool, device=parents.device)[:, None, :, None]
        causal = torch.ones(size, size, dtype=torch.bool, device=parents.device).tril()[None, :, None]
        own = (own & causal).flatten(2).expand(len(parents), -1, -1, -1)
        seen = torch.cat((before, own), -1)
        hidden = self.slot_states(condition, tokens, positions, store, seen.flatten(1, 2)[:, None])
        return Blocks(hidden, first, positions, seen)

    def slot_logits(self, hidden: Float[Tensor, "*b h"]) -> Float[Tensor, "*b w"]:
        """Scores of the draft vocabulary, from hidden states before the norm."""
        return self.draft_logits(self.norm(hidden))


def chosen_rows(rows: Shaped[Tensor, "b s *d"], chosen: Int64[Tensor, "b q"]) -> Shaped[Tensor, "b q *d"]:
    """Some rows of each sequence, by their places."""
    return rows[torch.arange(len(rows), device=rows.device)[:, None], chosen]


def rows_of(places: Int64[Tensor, "b m"], size: int) -> Int64[Tensor, "b s"]:
    """The places of all slots of blocks, `size` of each."""
    return (places[..., None] * size + torch.arange(size, device=places.device)).flatten(1)


def visible_rows(first_row: Int64[Tensor, " b"], count: int, span: int) -> Bool[Tensor, "b 1 s u"]:
    """The plain causal mask of `count` rows that follow `first_row` others, over `span` rows in all."""
    rows = first_row[:, None] + torch.arange(count, device=first_row.device)
    return (torch.arange(span, device=first_row.device) <= rows[..., None])[:, None]
