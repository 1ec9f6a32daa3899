"""Optimisers and the learning-rate schedule, which is a function of the step and nothing else."""

from __future__ import annotations

import math

import torch
from torch import nn

from paceline.train.config import OptimizerConfig
from paceline.train.muon import Muon


def rate_factor(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Fraction of the peak learning rate at `step` (0-based) of `total_steps`."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = min((step - config.warmup_steps) / max(total_steps - config.warmup_steps, 1), 1.0)
    remaining = 1 - progress if config.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return config.floor + (1 - config.floor) * remaining


def build_optimizers(network: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """The optimisers of the parameters that learn."""
    learning = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    matrices = [p for name, p in learning if p.dim() == 2 and "embed_tokens" not in name and "lm_head" not in name]
    in_muon = {id(p) for p in matrices} if config.kind == "muon" else set()
    rest = [p for _, p in learning if id(p) not in in_muon]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW([g for g in groups if g["params"]], lr=config.learning_rate, betas=config.betas)
    ]
    if in_muon:
        muon = Muon(matrices, config.learning_rate, config.momentum, config.weight_decay)
        optimizers.insert(0, muon)
    return optimizers


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Give every parameter group this learning rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
