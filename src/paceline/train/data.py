"""Conversations of a folder of shards, in an order that is a function of (seed, epoch) alone.

Resuming needs no iterator state: sample number s of a run is `order.sample(s)`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from paceline.errors import InputError
from paceline.learning.conversation import Conversation
from paceline.train.shards import Shard, read_shard


@dataclass(frozen=True)
class ConversationDataset:
    """Random access to conversations: item i lies at `places[i]` = (shard, index in the shard)."""

    shards: tuple[Shard, ...]
    places: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Conversation:
        shard, inside = self.places[index]
        return self.shards[shard][inside]

    @property
    def num_features(self) -> int:
        """Width of a feature row: taps times the target's hidden size."""
        return self.shards[0].tensors["features"].shape[1]

    def num_response_tokens(self) -> int:
        """Tokens that the target wrote."""
        return sum(len(self[i].tokens) - self[i].response_start for i in range(len(self)))

    def subset(self, indices: list[int]) -> ConversationDataset:
        """The same shards, fewer conversations."""
        return ConversationDataset(self.shards, tuple(self.places[i] for i in indices))


def open_dataset(folder: Path, names: list[str] | None = None) -> ConversationDataset:
    """Open `shard-*.safetensors` of a folder, or exactly the files `names` where a run recorded them."""
    paths = sorted(folder.glob("shard-*.safetensors")) if names is None else [folder / n for n in names]
    if not paths:
        found = "no shard-*.safetensors in" if folder.is_dir() else "no folder" if not folder.exists() else "a file at"
        raise InputError(f"there is {found} {folder}; give the folder of `paceline train conversations`.")
    shards = tuple(read_shard(path) for path in paths)
    widths = {shard.tensors["features"].shape[1] for shard in shards}
    if len(widths) > 1:
        raise InputError(
            f"the shards in {folder} have features of different widths {sorted(widths)}; "
            "keep the shards of one target and one set of tapped layers per folder"
        )
    places = tuple((s, i) for s, shard in enumerate(shards) for i in range(len(shard)))
    return ConversationDataset(shards, places)


def split_by_hash(dataset: ConversationDataset, held_out: float) -> tuple[ConversationDataset, ConversationDataset]:
    """(training, held out): a conversation's side is a function of its tokens.

    So a repeated conversation never lies on both sides, and shards added later move nothing.
    """
    sides: tuple[list[int], list[int]] = ([], [])
    for index in range(len(dataset)):
        sides[_unit_hash(dataset[index].tokens) < held_out].append(index)
    for side, indices in zip(("training", "held-out"), sides, strict=True):
        if not indices:
            raise InputError(
                f"the {side} side of {len(dataset)} conversations is empty at a held-out fraction of {held_out}; "
                "record more conversations or raise --held-out."
            )
    return dataset.subset(sides[0]), dataset.subset(sides[1])


def _unit_hash(tokens: Tensor) -> float:
    digest = hashlib.blake2b(tokens.contiguous().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


@dataclass
class ShuffledOrder:
    """An endless stream of indices below `size`: one seeded permutation per epoch, back to back."""

    size: int
    seed: int
    _epochs: dict[int, list[int]] = field(default_factory=dict, repr=False)

    def sample(self, number: int) -> int:
        """Index of the stream's sample `number`."""
        epoch, place = divmod(number, self.size)
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(fold_seed(self.seed, epoch))
            self._epochs.clear()
            self._epochs[epoch] = torch.randperm(self.size, generator=generator).tolist()
        return self._epochs[epoch][place]


def fold_seed(*numbers: int) -> int:
    """One 63-bit seed of several numbers, different whenever any of them is."""
    text = ",".join(str(number) for number in numbers).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
