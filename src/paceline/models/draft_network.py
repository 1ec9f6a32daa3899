"""What all draft networks share: a vocabulary of their own, and weights that they borrow from the target.

Letters: b rows, s rows of a block, h hidden, v target vocabulary, w draft vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from paceline.models.layers import RMSNorm

_BORROWABLE = ("embed_tokens", "lm_head")


@runtime_checkable
class DraftSizes(Protocol):
    """What the config of a draft network says of its vocabulary; `draft_vocab_size` None means the target's whole."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def draft_vocab_size(self) -> int | None: ...
    @property
    def has_embedding(self) -> bool: ...
    @property
    def has_head(self) -> bool: ...


class DraftNetwork(nn.Module):
    """The base of draft networks. Where one has no embedding or head of its own, `attach` lends it the target's.

    Borrowed weights are frozen and stay out of the `state_dict`.
    """

    norm: RMSNorm
    d2t: Tensor
    t2d: Tensor

    def __init__(self, sizes: DraftSizes):
        super().__init__()
        self._sizes = sizes
        own_embedding = nn.Embedding(sizes.vocab_size, sizes.hidden_size) if sizes.has_embedding else None
        own_head = nn.Linear(sizes.hidden_size, self.num_draft_tokens, bias=False) if sizes.has_head else None
        self.register_module("embed_tokens", own_embedding)
        self.register_module("lm_head", own_head)
        if sizes.draft_vocab_size is not None:
            self.register_buffer("d2t", torch.zeros(sizes.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(sizes.vocab_size, dtype=torch.bool))
            self.set_draft_vocabulary(torch.arange(sizes.draft_vocab_size))
        self.register_state_dict_post_hook(_drop_borrowed)
        self.register_load_state_dict_post_hook(_excuse_borrowed)

    @property
    def num_draft_tokens(self) -> int:
        """Size of the vocabulary that the head scores."""
        return self._sizes.draft_vocab_size or self._sizes.vocab_size

    @property
    def vocab_size(self) -> int:
        """Size of the target's vocabulary."""
        return self._sizes.vocab_size

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def attach(self, embedding: Float[Tensor, "v h"], head: Float[Tensor, "v h"]) -> None:
        """Borrow the target's embedding and head where the network has none of its own.

        They share the target's storage when dtype and device agree, and are copied otherwise; of the head
        a reduced draft vocabulary gathers its rows. Call it again after `set_draft_vocabulary`.
        """
        borrows = not (self._sizes.has_embedding and self._sizes.has_head)
        assert not borrows or embedding.shape[1] == head.shape[1] == self._sizes.hidden_size, "of another hidden size"
        device, dtype = self.norm.weight.device, self.dtype
        if not self._sizes.has_embedding:
            self.embed_tokens = _frozen_embedding(embedding.detach().to(device, dtype))
        if not self._sizes.has_head:
            rows = head.detach()
            if self._sizes.draft_vocab_size is not None:
                rows = rows[self.draft_vocabulary().to(rows.device)]
            self.lm_head = _frozen_linear(rows.to(device, dtype))

    def draft_vocabulary(self) -> Int64[Tensor, " w"]:
        """The target's id of every draft id."""
        return self.draft_to_target(torch.arange(self.num_draft_tokens, device=self.norm.weight.device))

    def set_draft_vocabulary(self, target_ids: Int64[Tensor, " w"]) -> None:
        """Let draft id i mean `target_ids[i]`; the ids must be distinct."""
        assert self._sizes.draft_vocab_size == len(target_ids), "the config fixes the vocabulary's size"
        target_ids = target_ids.to(self.d2t.device)
        self.d2t.copy_(target_ids - torch.arange(len(target_ids), device=self.d2t.device))
        self.t2d.zero_()[target_ids] = True

    def draft_to_target(self, ids: Int64[Tensor, "*b"]) -> Int64[Tensor, "*b"]:
        """The target's ids of draft ids (`d2t` holds offsets)."""
        return ids if self._sizes.draft_vocab_size is None else ids + self.d2t[ids]

    def target_to_draft(self, ids: Int64[Tensor, "*b"]) -> Int64[Tensor, "*b"]:
        """The draft ids of the target's ids; -1 where the draft vocabulary lacks the token."""
        if self._sizes.draft_vocab_size is None:
            return ids
        table = torch.full((self._sizes.vocab_size,), -1, device=ids.device)
        table[self.draft_vocabulary()] = torch.arange(self.num_draft_tokens, device=ids.device)
        return table[ids]

    def embed(self, tokens: Int64[Tensor, "*b s"]) -> Float[Tensor, "*b s h"]:
        assert self.embed_tokens is not None, "attach the target's embedding first"
        return self.embed_tokens(tokens)

    def draft_logits(self, hidden: Float[Tensor, "*b h"]) -> Float[Tensor, "*b w"]:
        """Scores of the draft vocabulary, from normed hidden states."""
        assert self.lm_head is not None, "attach the target's head first"
        return self.lm_head(hidden)

    def borrowed_prefixes(self) -> tuple[str, ...]:
        """How the names of the weights begin that are the target's."""
        owned = (self._sizes.has_embedding, self._sizes.has_head)
        return tuple(f"{name}." for name, owns in zip(_BORROWABLE, owned, strict=True) if not owns)


def _frozen_embedding(weight: Float[Tensor, "v h"]) -> nn.Embedding:
    embedding = nn.Embedding(weight.shape[0], weight.shape[1], device="meta")
    embedding.weight = nn.Parameter(weight, requires_grad=False)
    return embedding


def _frozen_linear(weight: Float[Tensor, "w h"]) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def _drop_borrowed(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    assert isinstance(module, DraftNetwork)
    borrowed = tuple(prefix + name for name in module.borrowed_prefixes())
    for name in [name for name in state if name.startswith(borrowed)] if borrowed else []:
        del state[name]


def _excuse_borrowed(module: nn.Module, incompatible: Any) -> None:
    """A checkpoint without the borrowed weights is complete."""
    assert isinstance(module, DraftNetwork)
    borrowed = module.borrowed_prefixes()
    missing = incompatible.missing_keys
    missing[:] = [name for name in missing if not (borrowed and name.startswith(borrowed))]
