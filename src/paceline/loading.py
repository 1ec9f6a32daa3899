"""From names and paths to a model that answers: target, tokenizer, drafter and policy put together."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.adaptation.adapter import Adapter
from paceline.adaptation.settings import AdaptationSettings
from paceline.adaptation.task import DFlashTask, Eagle3Task, SpecBlockTask
from paceline.attach import make_ready
from paceline.calibrate import costs_of, default_max_budget
from paceline.checkpoints.dialect import Dialect, dialect_of
from paceline.checkpoints.draft_weights import read_metadata
from paceline.checkpoints.eagle3 import load_eagle3
from paceline.checkpoints.specblock import load_specblock
from paceline.checkpoints.z_lab import load_dflash
from paceline.decode import Parts
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.eagle3 import EAGLE3_TREES, Eagle3Drafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.drafters.specblock import SpecBlockDrafter, specblock_tree
from paceline.embedded import embedded_policies
from paceline.errors import CheckpointError, InputError
from paceline.kernels import prepare_for_device
from paceline.policies.base import Policy
from paceline.policies.fixed import FixedPolicy
from paceline.policies.named import Circumstances, named_policy
from paceline.policies.spelling import check_spelling
from paceline.sources import (
    NO_DRAFTER,
    PROMPT_LOOKUP,
    default_drafter,
    drafter_path,
    first_line,
    load_tokenizer,
    pair_digests,
    target_path,
    template_digest,
)
from paceline.target.base import Target
from paceline.target.exact import require_exact
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.text_model import NUM_PREFIXES, Model
from paceline.tree import GROWTHS
from paceline.types import GenerationSettings

MAX_THREADS_PER_CORE = 8


def load(
    target: str | None = None,
    drafter: str | None = None,
    *,
    tree: str = "best_first",
    lookup: bool = True,
    exact: bool = False,
    tree_budget: int | None = None,
    block_size: int | None = None,
    siblings: tuple[int, int, int, int] | None = None,
    starts: int | None = None,
    policy: str | None = None,
    adapt: bool | AdaptationSettings = False,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    threads: int | None = None,
    num_prefixes: int = NUM_PREFIXES,
) -> Model:
    """Load a target and a drafter.

    `target` is a Hugging Face name or folder (None: the embedded SmolLM2-135M-Instruct). `drafter` is a checkpoint
    folder or hub name, "prompt_lookup", or "none"; "dflash" and "specblock" are those that come with the embedded
    target. None means the first of them for the embedded target and prompt lookup for any other. `lookup` merges what
    followed the same words before into the trees that a draft network grows by best_first. `siblings` and `starts`
    shape the trees of a SpecBlock drafter: tokens that a slot tries for each rank bucket, and nodes from which its
    later blocks start. `exact` refuses a target whose logits depend, in their last bits, on what else is in the pass.
    `policy` decides how much to draft: "fixed:SIZE[:NODES]", "blockpilot[:FOLDER]", "cost_aware[:calibrated]" or
    "joint[:FOLDER]"; the last two kinds measure this machine once (None: `block_size`, or the drafter's own). `adapt`
    lets the drafter learn from what it serves (the model's `adapter` tells what it did, and saves it). `dtype` defaults
    to float32 on a CPU and to the checkpoint's elsewhere. The caches of the last `num_prefixes` answers are kept for
    prompts that begin like them (in bfloat16 and float16 such a prompt's text may part from a fresh start's where two
    tokens nearly tie).

    Raises:
        InputError: unknown names, missing paths, checkpoints that do not fit (and its subclasses).
        DownloadError: the embedded target could not be fetched.
    """
    set_threads(threads)
    if policy is not None:
        check_spelling(policy)
    target = None if target is None else str(target)
    if drafter == NO_DRAFTER and (block_size is not None or tree_budget is not None):
        raise InputError(
            "block_size and tree_budget say how much to draft, but drafter 'none' does not; leave them out."
        )
    if drafter == NO_DRAFTER and tree != "best_first":
        raise InputError(f"tree {tree!r} says how a draft grows, but drafter 'none' does not draft; leave it out.")
    if policy is not None and (drafter == NO_DRAFTER or block_size is not None):
        other = "drafter 'none'" if drafter == NO_DRAFTER else f"block_size {block_size}"
        raise InputError(f"policy {policy!r} and {other} came, but go together badly; leave one of them out.")
    drafter = default_drafter(target) if drafter is None else drafter
    if adapt is not False and drafter in (NO_DRAFTER, PROMPT_LOOKUP):
        raise InputError(f"adapt lets a draft network learn, but drafter {drafter!r} has none; leave it out.")
    loaded = load_target(target, dtype, device)
    if exact:
        require_exact(loaded)
    tokenizer = load_tokenizer(target)
    part = load_drafter(drafter, loaded, tree, tree_budget, siblings, starts)
    if isinstance(part, DFlashDrafter | SpecBlockDrafter | Eagle3Drafter):
        _warn_of_another_template(drafter, tokenizer)
        if lookup and tree == "best_first":
            part = MixtureDrafter(part, PromptLookupDrafter())
    if num_prefixes < 0:
        raise InputError(f"num_prefixes is {num_prefixes}, but must be 0 (keep none) or more.")
    parts = make_parts(loaded, part, block_size, tree_budget)
    if policy is not None and part is not None:
        pair = functools.partial(pair_digests, target, drafter)
        parts = replace(parts, policy=load_policy(policy, loaded, part, tree_budget, pair))
    if adapt is not False:
        parts = replace(parts, observer=make_adapter(parts, drafter, AdaptationSettings() if adapt is True else adapt))
    return Model(parts, tokenizer, is_embedded=target is None, num_prefixes=num_prefixes)


def make_adapter(parts: Parts, drafter: str, settings: AdaptationSettings) -> Adapter:
    """What lets the drafter of these parts, which has a network and was loaded by this name, learn while it serves."""
    serving: Drafter | None = parts.drafter
    beside: Drafter | None = None
    if isinstance(parts.drafter, MixtureDrafter):
        serving, beside = parts.drafter.first, parts.drafter.second
    plan = parts.policy.plan if isinstance(parts.policy, FixedPolicy) else None
    kinds = {SpecBlockDrafter: SpecBlockTask, Eagle3Drafter: Eagle3Task, DFlashDrafter: DFlashTask}
    for kind, task in kinds.items():
        if isinstance(serving, kind):
            return Adapter(task(serving, drafter_path(drafter), parts.target, beside), settings, plan)
    raise AssertionError(f"{type(serving).__name__} has no network")


def load_policy(
    spec: str, target: Target, drafter: Drafter, tree_budget: int | None, pair: Callable[[], dict[str, str]]
) -> Policy:
    """The policy by name, for this target and drafter; `pair` tells their digests where they are wanted.

    Raises:
        InputError: no such policy, or one that was trained for another pair.
    """
    most = tree_budget or default_max_budget(target.info.device)
    given = Circumstances(
        block_size=drafter.default_block_size,
        own_budget=drafter.default_tree_budget,
        asked_budget=tree_budget,
        max_budget=most,
        pair=pair,
        costs=lambda: costs_of(target, drafter, most, pair()),
        shipped=embedded_policies(),
    )
    return named_policy(spec, given)


def make_parts(
    target: Target, drafter: Drafter | None, block_size: int | None = None, tree_budget: int | None = None
) -> Parts:
    """The loop's parts with a fixed policy: the given sizes, else the drafter's own."""
    GenerationSettings(block_size=block_size, tree_budget=tree_budget)  # refuses what no request may ask for
    if drafter is None:
        return Parts(target)
    block_size = block_size or drafter.default_block_size
    # Room for a whole chain, where a longer block is asked for than the drafter's own.
    tree_budget = tree_budget or max(drafter.default_tree_budget, block_size - 1)
    policy = FixedPolicy(block_size, tree_budget)
    return Parts(target, drafter, policy)


def set_threads(threads: int | None) -> None:
    """Set torch's CPU threads (None: leave them).

    Raises:
        InputError: fewer than one thread.
    """
    if threads is None:
        return
    most = MAX_THREADS_PER_CORE * (os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise InputError(f"threads is {threads}, but must be within 1 to {most} on this machine.")
    torch.set_num_threads(threads)


def load_target(
    name: str | None = None, dtype: str | torch.dtype | None = None, device: str | None = None, prepare: bool = True
) -> HuggingFaceTarget:
    """The target alone; `prepare` swaps in the fast modules for its device."""
    model = load_hugging_face(name, dtype, device)
    target = HuggingFaceTarget(model, name or "SmolLM2-135M-Instruct")
    if prepare:
        prepare_for_device(model)
    return target


def load_hugging_face(name: str | None, dtype: str | torch.dtype | None, device: str | None) -> Any:
    """The plain Hugging Face model, as `generate` would use it."""
    path = target_path(name)
    chosen = device_named(device)
    try:
        config = AutoConfig.from_pretrained(path)
        if config.is_encoder_decoder:
            raise InputError(f"{path} is an encoder-decoder model, and paceline serves decoder-only models.")
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=_dtype(dtype, chosen))
        return model.to(chosen).eval().requires_grad_(False)
    except InputError:
        raise
    except Exception as error:  # transformers raises many kinds for an unusable folder or name
        raise CheckpointError(f"the target {path!r} cannot be loaded: {first_line(error)}") from error


def load_drafter(
    name: str,
    target: Target,
    tree: str = "best_first",
    tree_budget: int | None = None,
    siblings: tuple[int, int, int, int] | None = None,
    starts: int | None = None,
) -> Drafter | None:
    """A drafter by name or path, checked against the target and ready for its device."""
    if tree not in GROWTHS:
        raise InputError(f"tree is {tree!r}, but must be one of {', '.join(GROWTHS)}.")
    path = None if name in (NO_DRAFTER, PROMPT_LOOKUP) else drafter_path(name)
    if path is not None and dialect_of(path) is Dialect.SPECBLOCK:
        shape = specblock_tree(tree, siblings, starts)
        network = load_specblock(path, target.info.num_layers)
        make_ready(network, network.config, target)
        return SpecBlockDrafter(network, shape, tree_budget)
    if path is not None and dialect_of(path) is Dialect.EAGLE3 and siblings is None and starts is None:
        layer = load_eagle3(path, target.info.num_layers)
        make_ready(layer, layer.config, target)
        return Eagle3Drafter(layer, EAGLE3_TREES[tree], tree_budget)
    for what, value in (("siblings", siblings), ("starts", starts)):
        if value is not None:
            raise InputError(f"{what} shapes the trees of a SpecBlock drafter, but {name!r} is none; leave it out.")
    if name == NO_DRAFTER:
        return None
    if path is None:
        if tree not in ("best_first", "chain"):
            raise InputError(f"prompt_lookup drafts a chain, but tree {tree!r} was asked for; leave it out.")
        return PromptLookupDrafter()
    blocks = load_dflash(path, num_target_layers=target.info.num_layers)
    make_ready(blocks, blocks.config, target)
    return DFlashDrafter(blocks, GROWTHS[tree], tree_budget)


def _warn_of_another_template(drafter: str, tokenizer: Any) -> None:
    """A drafter accepts far less under another chat template than the one it was trained on."""
    recorded = read_metadata(drafter_path(drafter)).get("chat_template_sha256")
    if recorded is not None and recorded != template_digest(tokenizer.chat_template):
        warnings.warn(
            f"the drafter {drafter!r} was trained with another chat template than this tokenizer's; "
            "the text stays right, but expect fewer accepted tokens.",
            stacklevel=3,
        )


def device_named(name: str | None) -> torch.device:
    if name is None:
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(kind)
    if name == "meta":
        raise InputError("device 'meta' holds no numbers; name one that computes, such as cpu.")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here: {first_line(error)}") from error


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in known:
        raise InputError(f"dtype is {dtype!r}, but must be one of {', '.join(known)}.")
    return known[dtype]
