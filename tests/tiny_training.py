"""A tiny target folder and shards of random conversations: a training run in seconds."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.learning.conversation import Conversation
from paceline.train.config import DrafterShape, OptimizerConfig, RunConfig, TrainConfig
from paceline.train.eagle3_config import Eagle3Shape, Eagle3TrainConfig
from paceline.train.heads_config import HeadsShape, HeadsTrainConfig
from paceline.train.shards import write_shard
from paceline.train.specblock_config import SpecBlockShape, SpecBlockTrainConfig

VOCABULARY, HIDDEN, TAPS, TOP = 40, 16, (0, 2), 16
END = 2


def conversation(length: int = 24, response_start: int = 6, seed: int = 0) -> Conversation:
    """Responses count upwards from a random token, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    start = int(torch.randint(3, VOCABULARY, (1,), generator=generator))
    tokens = 3 + (start + torch.arange(length)) % (VOCABULARY - 3)
    following = 3 + (tokens[:, None] - 2 + torch.arange(TOP)) % (VOCABULARY - 3)
    log_probs = torch.log_softmax(-0.7 * torch.arange(TOP, dtype=torch.float32), 0).expand(length, -1)
    features = torch.randn(length, len(TAPS) * HIDDEN, generator=generator)
    return Conversation(tokens.int(), response_start, features.bfloat16(), following.int(), log_probs.half())


def write_data(folder: Path, num_shards: int = 2, per_shard: int = 12) -> Path:
    for shard in range(num_shards):
        seeds = range(shard * per_shard, (shard + 1) * per_shard)
        write_shard(folder / f"shard-{shard:05d}.safetensors", [conversation(18 + s % 7, seed=s) for s in seeds])
    return folder


def write_target(folder: Path) -> Path:
    folder.mkdir(parents=True)
    config = {
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 3,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "eos_token_id": END,
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(9)
    weights = {"model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator)}
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        weights[prefix + "mlp.gate_proj.weight"] = torch.randn(32, HIDDEN, generator=generator)
        weights[prefix + "input_layernorm.weight"] = torch.rand(HIDDEN, generator=generator)
    save_file(weights, folder / "model.safetensors")
    return folder


def tiny_config(folder: Path, **changes: Any) -> TrainConfig:
    """A run in `folder/run` on the target and the data that lie in `folder`."""
    settings: dict[str, Any] = {
        "data": folder / "data",
        "target": str(folder / "target"),
        "run": folder / "run",
        "shape": DrafterShape(num_layers=1, block_size=4, target_layer_ids=TAPS, draft_vocab_size=30),
        "optimizer": OptimizerConfig(warmup_steps=2),
        "steps": 12,
        "batch_size": 3,
        "num_anchors": 4,
        "held_out": 0.2,
        "num_held_out": 4,
        "tree_budget": 6,
        "threads": 1,
        "chunk_blocks": 5,
        "steps_per_log": 1,
        "minutes_per_checkpoint": 0.0,
        "minutes_per_probe": 60.0,
    }
    return TrainConfig(**(settings | changes))


def tiny_specblock_config(folder: Path, **changes: Any) -> SpecBlockTrainConfig:
    """The same for a SpecBlock drafter."""
    shared = {f.name: getattr(tiny_config(folder), f.name) for f in fields(RunConfig)}
    shape = {"num_layers": 1, "num_slots": 3, "target_layer_ids": TAPS, "draft_vocab_size": 30}
    shape |= changes.pop("shape", {})
    return SpecBlockTrainConfig(**(shared | {"shape": SpecBlockShape(**shape)} | changes))


def tiny_eagle3_config(folder: Path, **changes: Any) -> Eagle3TrainConfig:
    """The same for an EAGLE-3 drafter."""
    shared = {f.name: getattr(tiny_config(folder), f.name) for f in fields(RunConfig)}
    shape = {"target_layer_ids": TAPS, "draft_vocab_size": 30} | changes.pop("shape", {})
    return Eagle3TrainConfig(**(shared | {"shape": Eagle3Shape(**shape)} | changes))


def tiny_heads_config(folder: Path, **changes: Any) -> HeadsTrainConfig:
    """The same for parallel heads."""
    shared = {f.name: getattr(tiny_config(folder), f.name) for f in fields(RunConfig)}
    shape = {"num_heads": 3, "target_layer_ids": TAPS, "draft_vocab_size": 30} | changes.pop("shape", {})
    return HeadsTrainConfig(**(shared | {"shape": HeadsShape(**shape)} | changes))
