"""Checkpoints of block-size policies.

config.json         architectures ["PacelineBlockPolicy"], the network's shape, and under "paceline" what it was
                    trained for (digests of target, drafter and chat template) and how
model.safetensors   first, hidden.N, last
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoints.files import few, read_config, read_weights, replacing_folder, write_checkpoint
from paceline.errors import CheckpointError, InputError
from paceline.models.policy_head import PolicyHead, PolicyHeadConfig
from paceline.result_files import check_can_be_made

ARCHITECTURE = "PacelineBlockPolicy"
TEMPLATE = "chat_template_sha256"
SPREAD, TYPICAL = "spread", "typical"
"""Of a policy that predicts what is accepted, by block size: how far prompts lie from the prediction, and what is
predicted on average."""
PAIR = ("target_digest", "drafter_digest")
_STORED = (torch.float32, torch.bfloat16, torch.float16)


def save_policy(head: PolicyHead, path: Path, about: Mapping[str, Any], dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a checkpoint folder; an existing one is replaced only once the new one is complete.

    `about` says what it was trained for, and must be JSON with the digests of `PAIR`.
    """
    assert set(PAIR) <= set(about), "a policy belongs to a target and a drafter"
    config = {"architectures": [ARCHITECTURE], **asdict(head.config), "paceline": dict(about)}
    weights = {name: w.detach().to(dtype).cpu().contiguous() for name, w in head.state_dict().items()}
    with replacing_folder(path) as folder:
        write_checkpoint(folder, config, weights)


def load_policy(path: Path) -> tuple[PolicyHead, dict[str, Any]]:
    """The network in float32 on the CPU, in evaluation mode, and what it was trained for.

    Raises:
        CheckpointError: a file is missing or damaged, or this is no policy.
    """
    config = read_config(path)
    if config.get("architectures") != [ARCHITECTURE]:
        raise CheckpointError(
            f"{path} is no block-size policy: its architectures are {config.get('architectures')}, "
            f"but must be {[ARCHITECTURE]}."
        )
    about = config.get("paceline")
    if not isinstance(about, dict) or not set(PAIR) <= set(about):
        raise CheckpointError(f"{path} does not say which target and drafter it was trained for; train it again.")
    with torch.device("meta"):  # a config that lies about sizes allocates nothing
        head = PolicyHead(_head_config(config, path)).eval()
    weights, expected = read_weights(path), head.state_dict()
    different = sorted(set(weights) ^ set(expected)) or sorted(
        n for n in expected if weights[n].shape != expected[n].shape
    )
    if different:
        raise CheckpointError(f"{path} has other weights than its config says ({few(different)}); train it again.")
    for name, weight in weights.items():
        if weight.dtype not in _STORED:
            raise CheckpointError(f"{path} holds {name} as {weight.dtype}, but weights are floats; train it again.")
        if not weight.isfinite().all():
            raise CheckpointError(f"{path} holds NaN or infinity in {name}; train it again.")
    head.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)
    return head.requires_grad_(False), about


def check_replaceable(path: Path) -> None:
    """Refuse to write a policy where something else lies.

    Raises:
        CheckpointError: a file, or a folder that holds anything but a policy.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir() or read_config(path).get("architectures") != [ARCHITECTURE]:
        raise CheckpointError(f"{path} exists and is no policy; choose another place.")


def check_place(path: Path) -> None:
    """Refuse, before the work, a place where a policy could not be written.

    Raises:
        InputError: something else lies there, or no folder can be made there.
    """
    if path.is_symlink():
        raise CheckpointError(f"{path} is a link; name the folder itself.")
    check_replaceable(path)
    check_can_be_made(path)


def belongs_to(about: Mapping[str, Any], pair: Mapping[str, str]) -> bool:
    """Whether a policy was trained for this target and drafter."""
    return all(about[name] == pair[name] for name in PAIR)


def check_pair(about: Mapping[str, Any], pair: Mapping[str, str], path: Path) -> None:
    """Refuse a policy that was trained for another target or drafter than those of `pair`.

    Raises:
        CheckpointError: one of the digests differs.
    """
    for name in PAIR:
        if about[name] != pair[name]:
            what = name.removesuffix("_digest")
            raise CheckpointError(
                f"the policy {path} was trained for another {what} (digest {about[name]}, not {pair[name]}); "
                "label and train one for this pair."
            )
    if about.get(TEMPLATE) != pair.get(TEMPLATE):
        warnings.warn(
            f"the policy {path} was trained under another chat template than this tokenizer's; the text stays right, "
            "but expect worse block sizes.",
            stacklevel=2,
        )


def _head_config(config: Mapping[str, Any], path: Path) -> PolicyHeadConfig:
    names = {f.name for f in fields(PolicyHeadConfig)}
    unknown = sorted(set(config) - names - {"architectures", "paceline"})
    missing = sorted(names - set(config))
    if unknown or missing:
        raise CheckpointError(f"{path}/config.json has unknown keys {unknown} and lacks {missing}; train it again.")
    try:
        given: dict[str, Any] = {name: config[name] for name in names}
        return PolicyHeadConfig(**given | {"block_sizes": tuple(config["block_sizes"])})
    except (InputError, TypeError) as error:
        raise CheckpointError(f"{path}/config.json cannot be used: {error}") from error
