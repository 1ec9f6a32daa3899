"""A target that answers as it did when its conversations were recorded, so that the real loop can replay them.

Where a response is the target's own choice token by token, everything that verification would find is in the
recording: after the token at row t comes the token at row t + 1, and the features of row t are on disk.
Nodes off the recorded path get some row's values, which no lossless rule ever uses.

Letters: b rows, m nodes of a pass, n tokens, f width of the features, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from paceline.kv_cache import LayerShape, SlotCache
from paceline.learning.conversation import Conversation
from paceline.target.base import Pass, Target, TargetInfo
from paceline.tree import TreeBatch


class RecordedTarget(Target):
    """Recorded conversations behind the loop's interface; their prompts must arrive in order, each once.

    The cache holds, in place of keys and values, which row of the recording each committed token is (as a
    float32, which counts the rows of any held-out set exactly).
    """

    def __init__(self, conversations: Sequence[Conversation], vocab_size: int, device: torch.device):
        self._tokens = torch.cat([c.tokens.long() for c in conversations]).to(device)
        self._features = torch.cat([c.features for c in conversations]).to(device)
        lengths = torch.tensor([len(c.tokens) for c in conversations])
        self._first_rows = iter((lengths.cumsum(0) - lengths).tolist())
        self.embedding = self.head = torch.empty(vocab_size, 0, device=device)
        self.info = TargetInfo(
            name="the recording",
            num_layers=0,
            hidden_size=0,
            vocab_size=vocab_size,
            max_context=2**31 - 1,
            eos_token_ids=(),
            dtype=self._features.dtype,
            device=device,
        )

    def check_layers(self, layer_ids: Sequence[int]) -> None:
        """The recording's features are those of whichever layers it was made with."""

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        return SlotCache([LayerShape(1, 1, 0)], num_rows, num_slots, torch.float32, self.info.device)

    def prefill(self, cache: SlotCache, row: int, tokens: Sequence[int], feature_layers: Sequence[int] = ()) -> Pass:
        rows = next(self._first_rows) + torch.arange(len(tokens), device=self.info.device)[None]
        assert self._tokens[rows[0]].tolist() == list(tokens), "not the next recorded prompt"
        cache.open(row, 1, len(tokens))
        self._append(cache, rows)
        cache.extend([len(tokens)])
        return Pass(self._logits_after(rows[:, -1:]), self._features[rows])

    def verify(self, cache: SlotCache, trees: TreeBatch, feature_layers: Sequence[int] = ()) -> Pass:
        num_rows, width = trees.tokens.shape
        cache.open(0, num_rows, width)
        first_rows = cache.committed(range(num_rows))[0][0][:, 0, :1, 0].long()
        starts = torch.tensor(cache.starts, device=self.info.device)[:, None]
        rows = (first_rows + starts + trees.depths).clamp(max=len(self._tokens) - 1)
        self._append(cache, rows)
        return Pass(self._logits_after(rows), self._features[rows])

    def _append(self, cache: SlotCache, rows: Int64[Tensor, "b n"]) -> None:
        stored = rows[:, None, :, None].float()
        cache.append(0, stored, stored[..., :0])

    def _logits_after(self, rows: Int64[Tensor, "b m"]) -> Float[Tensor, "b m v"]:
        following = self._tokens[(rows + 1).clamp(max=len(self._tokens) - 1)]
        logits = torch.zeros(*rows.shape, self.info.vocab_size, device=self.info.device)
        return logits.scatter_(-1, following[..., None], 1.0)
