"""The draft network of a run: sized after its target, with fresh weights, the target's, or an earlier run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.checkpoints.rope_keys import parse_rope
from paceline.checkpoints.z_lab import check_fits, load_dflash
from paceline.errors import InputError
from paceline.models.dflash import DFlashNetwork
from paceline.models.dflash_config import DFlashConfig
from paceline.models.initialise import initialise_from_target
from paceline.train.config import DrafterShape, TrainConfig
from paceline.train.data import ConversationDataset, fold_seed
from paceline.train.target_weights import FINAL_NORM, TargetWeights
from paceline.train.vocabulary import choose_vocabulary, count_response_tokens


def build_drafter(
    config: TrainConfig, target: TargetWeights, training: ConversationDataset
) -> tuple[DFlashNetwork, Tensor]:
    """(network with the target's embedding and head attached, Int64[V] draft id of each target id or -1)."""
    earlier = config.start_from
    network = _earlier(earlier, config.shape, target) if earlier else _fresh(config, target, training)
    network.attach(target.embedding(), target.head())
    vocab_size = network.config.vocab_size
    return network.float().train(), network.target_to_draft(torch.arange(vocab_size))


def draft_config(shape: DrafterShape, target: dict[str, Any], mask_token_id: int, folder: Path) -> DFlashConfig:
    """The network's config, from the run's settings and the target's `config.json` (`folder` is for errors)."""
    heads = shape.num_attention_heads or target["num_attention_heads"]
    kv_heads = shape.num_key_value_heads or target.get("num_key_value_heads", heads)
    return DFlashConfig(
        hidden_size=target["hidden_size"],
        intermediate_size=shape.intermediate_size or target["intermediate_size"],
        num_hidden_layers=shape.num_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=target.get("head_dim") or target["hidden_size"] // target["num_attention_heads"],
        vocab_size=target["vocab_size"],
        block_size=shape.block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=shape.target_layer_ids,
        num_target_layers=target["num_hidden_layers"],
        draft_vocab_size=shape.draft_vocab_size,
        rms_norm_eps=target.get("rms_norm_eps", 1e-6),
        max_position_embeddings=target.get("max_position_embeddings", 32768),
        rope=parse_rope(target, folder),
    )


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


def _fresh(config: TrainConfig, target: TargetWeights, training: ConversationDataset) -> DFlashNetwork:
    vocab_size = target.config["vocab_size"]
    mask = config.shape.mask_token_id
    mask = _unused_token(training, vocab_size) if mask is None else mask
    settings = draft_config(config.shape, target.config, mask, target.folder)
    network = DFlashNetwork(settings)
    initialise(network, config.seed, config.shape.num_layers)
    if config.shape.init_layers:
        states = layer_states(target, config.shape.init_layers)
        initialise_from_target(network, states, target.get(FINAL_NORM))
    if settings.draft_vocab_size is not None:
        counts = count_response_tokens(training, vocab_size)
        vocabulary = choose_vocabulary(counts, settings.draft_vocab_size, end_tokens(target.config))
        network.set_draft_vocabulary(vocabulary.target_ids())
    return network


def _earlier(folder: Path, shape: DrafterShape, target: TargetWeights) -> DFlashNetwork:
    network = load_dflash(folder)
    hidden_size, vocab_size = target.config["hidden_size"], target.config["vocab_size"]
    check_fits(network.config, hidden_size, vocab_size, target.config["num_hidden_layers"], str(target.folder))
    asked = {
        "num_hidden_layers": shape.num_layers,
        "block_size": shape.block_size,
        "target_layer_ids": shape.target_layer_ids,
        "draft_vocab_size": shape.draft_vocab_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "mask_token_id": shape.mask_token_id,
    }
    for name, value in asked.items():
        found = getattr(network.config, name)
        if value != found and (value is not None or name == "draft_vocab_size"):
            raise InputError(
                f"the drafter in {folder} has {name} = {found} but {value} was asked for; "
                "ask for the same to start from it"
            )
    return network


def end_tokens(config: dict[str, Any]) -> list[int]:
    """The target's end-of-text ids."""
    ends = config.get("eos_token_id")
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def _unused_token(dataset: ConversationDataset, vocab_size: int) -> int:
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for shard in dataset.shards:
        counts += torch.bincount(shard.tensors["tokens"].long(), minlength=vocab_size)
    return int(torch.nonzero(counts == counts.min())[0])
