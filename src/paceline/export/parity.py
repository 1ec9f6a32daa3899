"""Whether a draft network serves as it was trained, and whether what was written is what was there.

A drafter that learned in one form (whole texts in one pass) and serves in another (caches, one block at a time) may
have learned something else than it does; nothing but its acceptance tells, far from here. So before a checkpoint is
handed on, the serving form drafts after random texts, and the training form must rank the same tokens first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paceline.drafters.base import Drafter, DraftRequest
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.eagle3 import EAGLE3_TREES, Eagle3Drafter
from paceline.errors import CheckpointError
from paceline.learning.unrolled import UnrolledBatch, unrolled
from paceline.metrics import StageClock
from paceline.models.dflash import DFlashNetwork
from paceline.models.eagle3 import Eagle3Network
from paceline.tree import GROWTHS

_TEXTS, _LENGTHS = 4, (5, 17, 33)
"""Random texts, and after how many tokens of them something is drafted."""
_TOLERANCE = 1e-3
"""Difference of logits, in standard deviations of them, that rounding may make in float32."""


@torch.inference_mode()
def check_forms(network: DFlashNetwork | Eagle3Network, seed: int = 0) -> int:
    """Compare the two forms of a network that has its embedding and head; the number of tokens compared.

    Raises:
        CheckpointError: they draft different tokens.
    """
    network = network.float().eval()
    count = 0
    for drafted, logits in _drafts(network, seed):
        chosen = logits.gather(-1, drafted[:, None])[:, 0]
        behind = (logits.max(-1).values - chosen) / logits.std(-1)
        if not bool((behind <= _TOLERANCE).all()):
            raise CheckpointError(
                "the network drafts other tokens when it serves than in the form that it learned in (the best one is "
                f"{float(behind.max()):.2g} standard deviations of the logits ahead); it is not written."
            )
        count += len(drafted)
    return count


def check_same(written: DFlashNetwork | Eagle3Network, network: DFlashNetwork | Eagle3Network) -> None:
    """What was read back is what was written, bit by bit.

    Raises:
        CheckpointError: another shape, or other weights.
    """
    ours, theirs = network.state_dict(), written.state_dict()
    differing = sorted(name for name in ours if name not in theirs or not torch.equal(ours[name], theirs[name]))
    if written.config != network.config or differing or len(ours) != len(theirs):
        what = differing[0] if differing else "its config"
        raise CheckpointError(f"the checkpoint reads back with another {what} than it was written with.")


def _drafts(network: DFlashNetwork | Eagle3Network, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of every text: draft ids that the serving form drafts as a chain, and the training form's logits Float[l, w]."""
    generator = torch.Generator().manual_seed(seed)
    drafter = _chain_drafter(network)
    size, width = drafter.default_block_size, len(network.config.target_layer_ids) * network.config.target_hidden_size
    for length in _LENGTHS * _TEXTS:
        tokens = torch.randint(network.vocab_size, (length + 1,), generator=generator)
        features = torch.randn(1, length, width, generator=generator)
        state = drafter.new_state(1, length + size, torch.device("cpu"))
        drafter.observe(state, 0, features, [length])
        tree = drafter.draft(state, [DraftRequest(tokens.tolist(), size, size - 1, size - 1)], StageClock())[0]
        text = torch.cat([tokens, tree.tokens])[None]
        padded = torch.cat([features, features.new_zeros(1, text.shape[1] - length, width)], 1)
        yield network.target_to_draft(tree.tokens), _trained_logits(network, padded, text, length, size)


def _chain_drafter(network: DFlashNetwork | Eagle3Network) -> Drafter:
    if isinstance(network, DFlashNetwork):
        return DFlashDrafter(network, GROWTHS["chain"])
    return Eagle3Drafter(network, EAGLE3_TREES["chain"])


def _trained_logits(
    network: DFlashNetwork | Eagle3Network, features: Tensor, text: Tensor, anchor: int, size: int
) -> Tensor:
    """Float[size - 1, w]: what the training form says of the tokens after the anchor, where the text is as drafted."""
    anchors = torch.tensor([[anchor]])
    if isinstance(network, DFlashNetwork):
        return network.draft_logits(network.training_forward(features, text, anchors, size)[0, 0])
    nothing = torch.zeros(1)
    slots = torch.zeros(1, 1, size - 2, dtype=torch.int64)
    batch = UnrolledBatch(features, text, anchors, slots, nothing, nothing, nothing)
    return network.slot_logits(unrolled(network, batch)[0, 0, :, 0])
