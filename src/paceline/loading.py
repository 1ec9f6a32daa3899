"""From names and paths to a model that answers: target, tokenizer, drafter and policy put together."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from paceline.adaptation.adapter import Adapter
from paceline.adaptation.settings import AdaptationSettings
from paceline.adaptation.task import DFlashTask, Eagle3Task, SpecBlockTask
from paceline.calibrate import costs_of, default_max_budget
from paceline.checkpoints.draft_weights import read_metadata
from paceline.decode import Parts
from paceline.drafter_loading import load_drafter
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.eagle3 import Eagle3Drafter
from paceline.drafters.heads import HeadsDrafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.drafters.small_model import SmallModelDrafter
from paceline.drafters.specblock import SpecBlockDrafter
from paceline.embedded import embedded_policies
from paceline.errors import InputError
from paceline.policies.base import Policy
from paceline.policies.fixed import FixedPolicy
from paceline.policies.named import Circumstances, named_policy
from paceline.policies.spelling import check_spelling
from paceline.sources import (
    NO_DRAFTER,
    PROMPT_LOOKUP,
    default_drafter,
    drafter_path,
    load_tokenizer,
    pair_digests,
    template_digest,
)
from paceline.target.base import Target
from paceline.target.exact import require_exact
from paceline.target_loading import load_target
from paceline.text_model import NUM_PREFIXES, Model
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
    thinking: bool | None = None,
) -> Model:
    """Load a target and a drafter.

    `target` is a Hugging Face name or folder (None: the embedded SmolLM2-135M-Instruct). `drafter` is a checkpoint
    folder or hub name, a smaller language model with the same tokenizer, "prompt_lookup", or "none"; "dflash",
    "specblock", "eagle3" and "heads" are those that come with the embedded target. None means the first of them for
    the embedded target and prompt lookup for any other. `lookup` merges what followed the same words before into the
    trees that a network grows by best_first. `siblings` and `starts` shape the trees of a SpecBlock drafter: tokens
    that a slot tries for each rank bucket, and nodes from which its later blocks start. `exact` refuses a target
    whose logits depend, in their last bits, on what else is in the pass. `policy` decides how much to draft:
    "fixed:SIZE[:NODES]", "blockpilot[:FOLDER]", "cost_aware[:calibrated]" or "joint[:FOLDER]"; the last two kinds
    measure this machine once (None: `block_size`, or the drafter's own). `adapt` lets the drafter learn from what it
    serves (the model's `adapter` tells what it did, and saves it). `dtype` defaults to float32 on a CPU and to the
    checkpoint's elsewhere. `thinking` switches the thinking mode of chat templates that have one. The caches of the
    last `num_prefixes` answers are kept for prompts that begin like them (in bfloat16 and float16 such a prompt's
    text may part from a fresh start's where two tokens nearly tie).

    Raises:
        InputError: unknown names, missing paths, checkpoints that do not fit (and its subclasses).
        DownloadError: the embedded target could not be fetched.
    """
    set_threads(threads)
    if num_prefixes < 0:
        raise InputError(f"num_prefixes is {num_prefixes}, but must be 0 (keep none) or more.")
    _refuse_contradictions(drafter, tree, tree_budget, block_size, policy)
    target = None if target is None else str(target)
    drafter = default_drafter(target) if drafter is None else drafter
    if adapt is not False and drafter in (NO_DRAFTER, PROMPT_LOOKUP):
        raise InputError(f"adapt lets a draft network learn, but drafter {drafter!r} has none; leave it out.")
    loaded = load_target(target, dtype, device)
    if exact:
        require_exact(loaded)
    tokenizer = load_tokenizer(target)
    part = load_drafter(drafter, loaded, tree, tree_budget, siblings, starts, tokenizer)
    if isinstance(part, SmallModelDrafter | HeadsDrafter) and adapt is not False:
        raise InputError(f"adapt lets DFlash, SpecBlock and EAGLE-3 drafters learn, but {drafter!r} is none of them.")
    if isinstance(part, DFlashDrafter | SpecBlockDrafter | Eagle3Drafter | HeadsDrafter):
        _warn_of_another_template(drafter, tokenizer)
    if part is not None and not isinstance(part, PromptLookupDrafter) and lookup and tree == "best_first":
        part = MixtureDrafter(part, PromptLookupDrafter())
    parts = make_parts(loaded, part, block_size, tree_budget)
    if policy is not None and part is not None:
        pair = functools.partial(pair_digests, target, drafter)
        parts = replace(parts, policy=load_policy(policy, loaded, part, tree_budget, pair))
    if adapt is not False:
        parts = replace(parts, observer=make_adapter(parts, drafter, AdaptationSettings() if adapt is True else adapt))
    return Model(parts, tokenizer, is_embedded=target is None, num_prefixes=num_prefixes, thinking=thinking)


def _refuse_contradictions(
    drafter: str | None, tree: str, tree_budget: int | None, block_size: int | None, policy: str | None
) -> None:
    """Refuse, before anything is loaded, what says how to draft where nothing is drafted, or in two ways."""
    if policy is not None:
        check_spelling(policy)
    if drafter == NO_DRAFTER and (block_size is not None or tree_budget is not None):
        raise InputError(
            "block_size and tree_budget say how much to draft, but drafter 'none' does not; leave them out."
        )
    if drafter == NO_DRAFTER and tree != "best_first":
        raise InputError(f"tree {tree!r} says how a draft grows, but drafter 'none' does not draft; leave it out.")
    if policy is not None and (drafter == NO_DRAFTER or block_size is not None):
        other = "drafter 'none'" if drafter == NO_DRAFTER else f"block_size {block_size}"
        raise InputError(f"policy {policy!r} and {other} came, but go together badly; leave one of them out.")


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


def _warn_of_another_template(drafter: str, tokenizer: Any) -> None:
    """A drafter accepts far less under another chat template than the one it was trained on."""
    recorded = read_metadata(drafter_path(drafter)).get("chat_template_sha256")
    if recorded is not None and recorded != template_digest(tokenizer.chat_template):
        warnings.warn(
            f"the drafter {drafter!r} was trained with another chat template than this tokenizer's; "
            "the text stays right, but expect fewer accepted tokens.",
            stacklevel=3,
        )
