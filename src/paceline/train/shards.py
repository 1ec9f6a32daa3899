"""The shard: a safetensors file of whole conversations, concatenated.

    tokens          Int32[T]            every token of every conversation
    lengths         Int32[n]            tokens of each conversation (they sum to T)
    response_starts Int32[n]            index, within its conversation, of the first response token
    features        BFloat16[T, F]      hidden states of the tapped layers, concatenated
    top_ids         Int32[T, 16]        row t: the target's likeliest tokens *after* token t ...
    top_log_probs   Float16[T, 16]      ... and their log-probabilities

A response runs to the end of its conversation. Rows of `top_*` before `response_start - 1` may be zeros, and
the last row of a conversation, which nothing follows, is zeros in `features` and `top_*`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.errors import CheckpointError
from paceline.learning.conversation import Conversation
from paceline.tensor_files import save_tensors

_DTYPES = {
    "tokens": torch.int32,
    "lengths": torch.int32,
    "response_starts": torch.int32,
    "features": torch.bfloat16,
    "top_ids": torch.int32,
    "top_log_probs": torch.float16,
}


@dataclass(frozen=True)
class Shard:
    """One file, memory-mapped: nothing is read before it is sliced."""

    path: Path
    tensors: dict[str, Tensor]
    starts: tuple[int, ...]
    """Row at which each conversation begins, with the total as last entry."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Conversation:
        rows = slice(self.starts[index], self.starts[index + 1])
        return Conversation(
            tokens=self.tensors["tokens"][rows],
            response_start=int(self.tensors["response_starts"][index]),
            features=self.tensors["features"][rows],
            top_ids=self.tensors["top_ids"][rows],
            top_log_probs=self.tensors["top_log_probs"][rows],
        )

    def digest(self) -> str:
        """SHA-256 of the tokens and their division into conversations: what the rest was computed from."""
        hasher = hashlib.sha256()
        for name in ("tokens", "lengths", "response_starts"):
            hasher.update(self.tensors[name].contiguous().numpy().tobytes())
        return hasher.hexdigest()


def write_shard(path: Path, conversations: list[Conversation]) -> None:
    """Write `conversations` so that a reader sees the whole file or none."""
    assert conversations, "a shard holds at least one conversation"
    tensors = {
        "tokens": torch.cat([c.tokens.int() for c in conversations]),
        "lengths": torch.tensor([len(c.tokens) for c in conversations], dtype=torch.int32),
        "response_starts": torch.tensor([c.response_start for c in conversations], dtype=torch.int32),
        "features": torch.cat([c.features.bfloat16() for c in conversations]),
        "top_ids": torch.cat([c.top_ids.int() for c in conversations]),
        "top_log_probs": torch.cat([c.top_log_probs.half() for c in conversations]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, tensors)


def read_shard(path: Path) -> Shard:
    """Map a shard into memory and check that it is whole.

    Raises CheckpointError for a file that is damaged, lacks a tensor, or whose tensors disagree.
    """
    tensors = _map_tensors(path)
    for name, dtype in _DTYPES.items():
        if tensors[name].dtype != dtype:
            raise CheckpointError(
                f"shard {path} stores {name} as {tensors[name].dtype}, expected {dtype}; generate it again"
            )
    rows = len(tensors["tokens"])
    lengths, responses = tensors["lengths"].long(), tensors["response_starts"].long()
    consistent = (
        tensors["features"].dim() == 2
        and tensors["top_ids"].shape == tensors["top_log_probs"].shape
        and all(len(tensors[name]) == rows for name in ("features", "top_ids", "top_log_probs"))
        and int(lengths.sum()) == rows
        and lengths.shape == responses.shape
        and bool((responses > 0).all() and (responses < lengths).all())
    )
    if not consistent:
        raise CheckpointError(
            f"shard {path} disagrees with itself (rows, lengths and response starts do not fit together); "
            "delete it or generate it again"
        )
    starts = (0, *torch.cumsum(lengths, 0).tolist())
    return Shard(path, tensors, starts)


def _map_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            missing = sorted(set(_DTYPES) - set(file.keys()))
            if missing:
                raise CheckpointError(f"shard {path} lacks {', '.join(missing)}; generate it again")
            return {name: file.get_tensor(name) for name in _DTYPES}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"shard {path} cannot be read ({error}); delete it or generate it again") from error
