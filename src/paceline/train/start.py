"""What training methods start from: fresh weights, a target's sizes and layers, a vocabulary of its responses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.checkpoints.draft_weights import check_fits
from paceline.checkpoints.rope_keys import parse_rope
from paceline.checkpoints.target_weights import TargetWeights
from paceline.errors import InputError
from paceline.models.draft_network import DraftNetwork
from paceline.models.rope import RopeConfig
from paceline.train.config import NetworkShape
from paceline.train.data import ConversationDataset, fold_seed
from paceline.train.vocabulary import choose_vocabulary, count_response_tokens


def target_sizes(
    target: dict[str, Any], folder: Path, num_heads: int | None, num_kv_heads: int | None, intermediate: int | None
) -> dict[str, Any]:
    """The sizes that a draft network takes from its target's `config.json` (`folder` is for errors), unless others are
    given."""
    heads = num_heads or target["num_attention_heads"]
    rope: RopeConfig = parse_rope(target, folder)
    return {
        "hidden_size": target["hidden_size"],
        "intermediate_size": intermediate or target["intermediate_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": num_kv_heads or target.get("num_key_value_heads", heads),
        "head_dim": target.get("head_dim") or target["hidden_size"] // target["num_attention_heads"],
        "vocab_size": target["vocab_size"],
        "num_target_layers": target["num_hidden_layers"],
        "rms_norm_eps": target.get("rms_norm_eps", 1e-6),
        "max_position_embeddings": target.get("max_position_embeddings", 32768),
        "rope": rope,
    }


def choose_draft_vocabulary(network: DraftNetwork, training: ConversationDataset, target: TargetWeights) -> None:
    """Let a network with a reduced vocabulary draft the tokens that responses are made of."""
    counts = count_response_tokens(training, network.vocab_size)
    vocabulary = choose_vocabulary(counts, network.num_draft_tokens, end_tokens(target.config))
    network.set_draft_vocabulary(vocabulary.target_ids())


def initialise(network: nn.Module, seed: int, num_layers: int) -> None:
    """Normal weights of variance 1 / inputs; what adds to the residual stream is smaller by sqrt(2 layers)."""
    generator = torch.Generator().manual_seed(fold_seed(seed, 0))
    for name, parameter in network.named_parameters():
        if parameter.dim() != 2 or not parameter.requires_grad:
            continue
        scale = parameter.shape[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale /= (2 * num_layers) ** 0.5
        with torch.no_grad():
            parameter.normal_(0.0, scale, generator=generator)


def layer_states(target: TargetWeights, layers: tuple[int, ...]) -> list[dict[str, Tensor]]:
    """The weights of each of these target layers, in their names inside the layer."""
    states = []
    for layer in layers:
        prefix = f"model.layers.{layer}."
        state = {name.removeprefix(prefix): target[name] for name in target.names() if name.startswith(prefix)}
        if not state:
            raise InputError(
                f"init_layers names the target's layer {layer}, of which its checkpoint has no weights "
                f"(none begins with {prefix}); name layers from 0 to {target.config['num_hidden_layers'] - 1}"
            )
        states.append(state)
    return states


def end_tokens(config: dict[str, Any]) -> list[int]:
    """The target's end-of-text ids."""
    ends = config.get("eos_token_id")
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def require_asked(found: Any, asked: Mapping[str, Any], folder: Path) -> None:
    """Refuse an earlier drafter's config that is not what a run asks for; None asks for nothing, but for the draft
    vocabulary it asks for the whole one.

    Raises:
        InputError: a setting is another one.
    """
    for name, value in asked.items():
        has = getattr(found, name)
        if value != has and (value is not None or name == "draft_vocab_size"):
            raise InputError(
                f"the drafter in {folder} has {name} = {has} but {value} was asked for; "
                "ask for the same to start from it"
            )


def fill_in(
    network: DraftNetwork, shape: NetworkShape, own_head: bool, training: ConversationDataset, target: TargetWeights
) -> None:
    """Let a fresh network with a reduced vocabulary draft what responses are made of, and a head of its own start as
    the target's."""
    if shape.draft_vocab_size is not None:
        choose_draft_vocabulary(network, training, target)
    if own_head:
        with torch.no_grad():
            network.lm_head.weight.copy_(target.head()[network.draft_vocabulary()])


def check_earlier(found: Any, shape: NetworkShape, target: TargetWeights, folder: Path, **own: Any) -> None:
    """Refuse an earlier drafter's config that is of another target, or not of the shape that a run asks for; `own` is
    what is asked of the method's own settings.

    Raises:
        CheckpointError: it was made for another target.
        InputError: a setting is another one.
    """
    of = target.config
    check_fits(found, of["hidden_size"], of["vocab_size"], of["num_hidden_layers"], str(target.folder))
    shared = ("target_layer_ids", "draft_vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    require_asked(found, {name: getattr(shape, name) for name in shared} | own, folder)
