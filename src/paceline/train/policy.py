"""Training a block-size policy; it is short, and starts anew when it is interrupted."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoints.policy import PAIR, SPREAD, TEMPLATE, TYPICAL, check_place, save_policy
from paceline.errors import InputError, TrainingDivergedError
from paceline.labels import Label, check_alike, held_out_share, read_labels, recorded_pair, with_rounds
from paceline.loading import set_threads
from paceline.models.policy_head import PolicyHead, PolicyHeadConfig
from paceline.target_loading import device_named
from paceline.train.policy_config import PolicyTrainConfig
from paceline.train.policy_objective import (
    Examples,
    acceptance_lengths,
    counting_noise,
    examples,
    loss,
    rates_at_median_cost,
)

_LEAST_SPREAD = 0.1
_MAY_DIFFER = frozenset({"threads", "device", "target", "drafter"})


@dataclass(frozen=True)
class Epoch:
    """One pass: losses, and how good the chosen sizes are on the validation prompts (of the best: 1)."""

    number: int
    loss: float
    validation_loss: float
    validation_accuracy: float
    validation_value: float


def train_policy(config: PolicyTrainConfig, report: Callable[[Epoch], None] = lambda epoch: None) -> Path:
    """Train, keep the epoch of the lowest validation loss, and write it; the folder.

    Raises:
        InputError: labels of different makings, or too few prompts to hold any out.
        CheckpointError: damaged labels.
        TrainingDivergedError: a loss that is no number.
    """
    set_threads(config.threads)
    check_place(config.out)
    labels, making = _read(config.labels)
    labels = with_rounds(labels)
    training = [label for label in labels if held_out_share(label) >= config.validation]
    validation = [label for label in labels if held_out_share(label) < config.validation]
    if not training or not validation:
        raise InputError(
            f"of {len(labels)} labelled prompts {len(validation)} fall to validation, but each side needs one; "
            "label more prompts, or change the share (--validation)."
        )
    torch.manual_seed(config.seed)
    head = PolicyHead(_shape(config, labels)).to(device_named(config.device))
    values = _values(config, labels)
    by_prompt = dict(zip(map(id, labels), values, strict=True))

    def of(part: Sequence[Label]) -> Examples:
        return examples(head, part, torch.stack([by_prompt[id(label)] for label in part]))

    if config.predict == "best_size" and len(of(training).best.unique()) == 1:
        warnings.warn(
            f"the {len(training)} training prompts all have the same best block size (ties go to the smallest), "
            "so there is nothing to choose by; label more prompts, or more different ones.",
            stacklevel=2,
        )
    best, epochs = _fit(config, head, of(training), of(validation), report)
    summary = _summary(head, of(training), of(validation), validation) if config.predict == "accepted" else {}
    about = {name: making[name] for name in (*PAIR, TEMPLATE)} | {
        "prompts": {"training": len(training), "validation": len(validation)},
        "recipe": {name: value for name, value in vars(config).items() if name not in ("labels", "out", "threads")},
        "labelled": {k: v for k, v in making.items() if k not in (*PAIR, TEMPLATE)},
        "epochs": epochs,
        "best_epoch": vars(best),
        **summary,
    }
    save_policy(head, config.out, about)
    return config.out


def _read(folders: Sequence[Path]) -> tuple[list[Label], dict[str, Any]]:
    """All labels, and the settings that they share."""
    labels: list[Label] = []
    making: dict[str, Any] | None = None
    for folder in folders:
        found = read_labels(folder)
        settings = {k: v for k, v in recorded_pair(folder).items() if k not in _MAY_DIFFER}
        making = making or settings
        different = sorted(k for k in {*settings, *making} if settings.get(k) != making.get(k))
        if different:
            name = different[0]
            raise InputError(
                f"{folder} was labelled with {name} = {settings.get(name)}, but {folders[0]} with {making.get(name)}; "
                "train on labels of one making."
            )
        labels += found
    assert making is not None, "the settings refuse no folders"
    check_alike(labels, folders[-1])
    return labels, making


def _shape(config: PolicyTrainConfig, labels: Sequence[Label]) -> PolicyHeadConfig:
    first = labels[0]
    widths = {
        "logits": len(first.logits),
        "softmax": len(first.logits),
        "top_k": min(config.top_k, len(first.logits)),
        "features": len(first.features),
        "last_hidden": len(first.hidden),
    }
    if not widths[config.inputs]:
        raise InputError("the labels hold no features, because their drafter has none; choose other inputs.")
    sizes = tuple(first.block_sizes.tolist())
    return PolicyHeadConfig(
        widths[config.inputs], sizes, config.inputs, config.width, config.num_layers, config.dropout, config.predict
    )


@torch.inference_mode()
def _summary(
    head: PolicyHead, training: Examples, validation: Examples, labels: Sequence[Label]
) -> dict[str, list[float]]:
    """What is predicted on average, and how far the truth lies from the prediction, for each size.

    The latter is a standard deviation: the error on the validation prompts (whose labels are given), less what counting
    few rounds explains of it.
    """
    device = head.first.weight.device
    error = (head(validation.inputs.to(device)).cpu() - validation.accepted).square().mean(0)
    floor = torch.full_like(error, _LEAST_SPREAD**2)
    spread = (error - counting_noise(labels)).maximum(floor).sqrt()
    return {TYPICAL: head(training.inputs.to(device)).mean(0).cpu().tolist(), SPREAD: spread.tolist()}


def _values(config: PolicyTrainConfig, labels: Sequence[Label]) -> torch.Tensor:
    by = {"acceptance_length": acceptance_lengths, "tokens_per_s": rates_at_median_cost}
    return by[config.label_by](labels)


def _fit(
    config: PolicyTrainConfig,
    head: PolicyHead,
    training: Examples,
    validation: Examples,
    report: Callable[[Epoch], None],
) -> tuple[Epoch, int]:
    """Leave `head` as it was in its best epoch; that epoch, and how many there were."""
    if config.predict == "accepted":  # begin at the average prompt, so that only what sets prompts apart is learned
        head.last.bias.data.copy_(training.accepted.mean(0))
    optimizer = torch.optim.Adam(head.parameters(), lr=config.learning_rate)
    best: Epoch | None = None
    kept: dict[str, torch.Tensor] = {}
    number = 0
    for number in range(1, config.epochs + 1):
        epoch = _epoch(number, config.batch, head, optimizer, training, validation)
        report(epoch)
        if best is None or epoch.validation_loss < best.validation_loss:
            best, kept = epoch, copy.deepcopy(head.state_dict())
        if number - best.number >= config.patience:
            break
    assert best is not None, "at least one epoch"
    head.load_state_dict(kept)
    head.eval()
    return best, number


def _epoch(
    number: int,
    batch: int,
    head: PolicyHead,
    optimizer: torch.optim.Optimizer,
    training: Examples,
    validation: Examples,
) -> Epoch:
    head.train()
    device = head.first.weight.device
    total = 0.0
    for rows in torch.randperm(len(training)).split(batch):
        error = loss(head, head(training.inputs[rows].to(device)), training, rows)
        if not bool(error.isfinite()):
            raise TrainingDivergedError(
                f"the loss is {float(error.detach())} in epoch {number}; train with a lower learning rate."
            )
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        total += float(error.detach()) * len(rows)
    head.eval()
    with torch.inference_mode():
        outputs = head(validation.inputs.to(device)).cpu()
        validation_loss = float(loss(head, outputs, validation, torch.arange(len(validation))))
    chosen = outputs.argmax(-1)
    gained = validation.values.gather(1, chosen[:, None])[:, 0] / validation.values.amax(-1)
    return Epoch(
        number,
        total / len(training),
        validation_loss,
        float((chosen == validation.best).double().mean()),
        float(gained.mean()),
    )
