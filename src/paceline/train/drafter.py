"""The draft network of a run: sized after its target, with fresh weights, the target's, or an earlier run's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.checkpoints.z_lab import load_dflash
from paceline.errors import InputError
from paceline.models.dflash import DFlashNetwork
from paceline.models.dflash_config import DFlashConfig
from paceline.models.rope import RopeConfig
from paceline.train.config import DrafterShape, TrainConfig
from paceline.train.data import ConversationDataset, fold_seed
from paceline.train.target_weights import TargetWeights
from paceline.train.vocabulary import choose_vocabulary, count_response_tokens


def build_drafter(
    config: TrainConfig, target: TargetWeights, training: ConversationDataset
) -> tuple[DFlashNetwork, Tensor]:
    """(network with the target's embedding and head attached, Int64[V] draft id of each target id or -1)."""
    network = _earlier(config.start_from, config) if config.start_from else _fresh(config, target, training)
    network.attach(target.embedding(), target.head())
    vocab_size = network.config.vocab_size
    return network.float().train(), network.target_to_draft(torch.arange(vocab_size))


def draft_config(shape: DrafterShape, target: dict[str, Any], mask_token_id: int) -> DFlashConfig:
    """The network's config, from the run's settings and the target's `config.json`."""
    heads = shape.num_attention_heads or target["num_attention_heads"]
    kv_heads = shape.num_key_value_heads or target.get("num_key_value_heads", heads)
    rope = target.get("rope_parameters") or target
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
        rope=RopeConfig(theta=float(rope.get("rope_theta", 10_000.0))),
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


def copy_layers(network: DFlashNetwork, target: TargetWeights, layers: tuple[int, ...]) -> None:
    """Start draft layer i from the target's layer `layers[i]`, where the two have weights of the same name."""
    for index, source in enumerate(layers):
        for name, parameter in network.layers[index].named_parameters():
            full = f"model.layers.{source}.{name}"
            if full not in target:
                continue
            weight = target[full]
            if weight.shape != parameter.shape:
                raise InputError(
                    f"init_layers copies {full} of shape {tuple(weight.shape)} into a draft layer of shape "
                    f"{tuple(parameter.shape)}; leave heads and intermediate size at the target's, or init_layers empty"
                )
            with torch.no_grad():
                parameter.copy_(weight)


def _fresh(config: TrainConfig, target: TargetWeights, training: ConversationDataset) -> DFlashNetwork:
    vocab_size = target.config["vocab_size"]
    mask = config.shape.mask_token_id
    settings = draft_config(config.shape, target.config, _unused_token(training, vocab_size) if mask is None else mask)
    network = DFlashNetwork(settings)
    initialise(network, config.seed, config.shape.num_layers)
    copy_layers(network, target, config.shape.init_layers)
    if settings.draft_vocab_size is not None:
        counts = count_response_tokens(training, vocab_size)
        vocabulary = choose_vocabulary(counts, settings.draft_vocab_size, end_tokens(target.config))
        network.set_draft_vocabulary(vocabulary.target_ids())
    return network


def _earlier(folder: Path, config: TrainConfig) -> DFlashNetwork:
    network = load_dflash(folder)
    shape = config.shape
    wanted = replace(
        network.config,
        num_hidden_layers=shape.num_layers,
        block_size=shape.block_size,
        target_layer_ids=shape.target_layer_ids,
        draft_vocab_size=shape.draft_vocab_size,
    )
    if network.config != wanted:
        raise InputError(
            f"the drafter in {folder} has {network.config.num_hidden_layers} layers, block size "
            f"{network.config.block_size}, taps {network.config.target_layer_ids} and draft vocabulary "
            f"{network.config.draft_vocab_size}; ask for the same to start from it"
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
