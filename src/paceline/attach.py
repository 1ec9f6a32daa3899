"""A draft network put beside its target."""

from __future__ import annotations

from paceline.checkpoints.draft_weights import MadeFor, check_fits
from paceline.kernels import prepare_for_device
from paceline.models.draft_network import DraftNetwork
from paceline.target.base import Target


def make_ready(network: DraftNetwork, config: MadeFor, target: Target) -> None:
    """Check a draft network against its target, lend it the target's weights, and put it where the target is.

    Raises:
        CheckpointError: it was made for another target.
    """
    info = target.info
    check_fits(config, info.hidden_size, info.vocab_size, info.num_layers, info.name)
    network.to(device=info.device, dtype=info.dtype)  # first, so that what is borrowed is shared
    network.attach(target.embedding, target.head)
    network.requires_grad_(False)
    prepare_for_device(network)
