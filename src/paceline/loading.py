"""From names and paths to a model that answers: target, tokenizer, drafter and policy put together."""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from paceline.calibrate import costs_of, default_max_budget
from paceline.checkpoints.digest import checkpoint_digest
from paceline.checkpoints.files import expanded
from paceline.checkpoints.z_lab import check_fits, load_dflash, read_metadata
from paceline.decode import Parts
from paceline.device_clock import device_clock
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.mixture import MixtureDrafter
from paceline.drafters.prompt_lookup import PromptLookupDrafter
from paceline.embedded import embedded_drafter, embedded_target
from paceline.engine import Engine, Request
from paceline.errors import CheckpointError, InputError
from paceline.grammar import GrammarCompiler, GrammarConstraint
from paceline.kernels import prepare_for_device
from paceline.noise import sample_seed
from paceline.policies.base import Policy
from paceline.policies.fixed import FixedPolicy
from paceline.policies.named import Circumstances, named_policy
from paceline.target.base import Target
from paceline.target.exact import require_exact
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.tree import GROWTHS
from paceline.types import Completion, GenerationSettings, Piece, complete

#: What may be given in place of a path to a drafter.
NO_DRAFTER, PROMPT_LOOKUP = "none", "prompt_lookup"


#: Finished sequences whose caches a model keeps for prompts that begin like them.
NUM_PREFIXES = 2
MAX_SAMPLES = 1024
MAX_THREADS_PER_CORE = 8


class Model:
    """A target with its tokenizer, drafter and policy: text in, text out.

    Requests of one `Model` share an engine, so `stream` may be called for several prompts at a time.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: Any,
        max_batch: int = 8,
        is_embedded: bool = False,
        num_prefixes: int = NUM_PREFIXES,
    ):
        self.parts = parts
        self.is_embedded = is_embedded
        self.tokenizer = tokenizer
        self.engine = Engine(
            parts,
            tokenizer,
            max_batch,
            device_clock(parts.target.info.device) if parts.policy is not None and parts.policy.needs_times else None,
            num_prefixes=num_prefixes,
            grammars=lambda: self.grammars,
        )

    @functools.cached_property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars for this tokenizer."""
        return GrammarCompiler(self.tokenizer, self.target.info.vocab_size)

    def constraint(self, settings: GenerationSettings) -> GrammarConstraint | None:
        """What holds an answer with these settings to its grammar, from the beginning; None where there is none."""
        if settings.grammar is None:
            return None
        return self.grammars.constraint(settings.grammar, settings.ends(self.target.info.eos_token_ids))

    @property
    def target(self) -> Target:
        return self.parts.target

    @property
    def drafter(self) -> Drafter | None:
        return self.parts.drafter

    def encode(self, prompt: str | list[dict[str, str]], raw: bool = False) -> list[int]:
        """Token ids of a conversation, or of one user turn; `raw` text goes without the chat template.

        Raises:
            InputError: a raw conversation, or a chat with a tokenizer that has no template.
        """
        if raw or (isinstance(prompt, str) and self.tokenizer.chat_template is None):
            if not isinstance(prompt, str):
                raise InputError("raw prompts are plain text, but a conversation came; pass a string or raw=False.")
            return list(self.tokenizer(prompt)["input_ids"])
        if self.tokenizer.chat_template is None:
            raise InputError("this tokenizer has no chat template for a conversation; pass plain text instead.")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def submit(self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None) -> Request:
        """Queue a prompt on the engine."""
        settings = settings or GenerationSettings()
        return self.engine.submit(self.encode(prompt, settings.raw), settings)

    def stream(self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None) -> Iterator[Piece]:
        """The answer as it comes; the last piece carries the finish reason and the statistics."""
        return self.engine.stream(self.submit(prompt, settings))

    def generate(self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None) -> Completion:
        """The whole answer."""
        request = self.submit(prompt, settings)
        return complete(list(self.engine.stream(request)))

    def samples(
        self, prompt: str | list[dict[str, str]], settings: GenerationSettings | None = None, n: int = 1
    ) -> list[Completion]:
        """Several answers to one prompt, decoded together: sample i has the i-th seed that follows from the request's.

        The first one is what `generate` gives.

        Raises:
            InputError: fewer than one sample, or more than MAX_SAMPLES.
        """
        if not 1 <= n <= MAX_SAMPLES:
            raise InputError(f"n is {n}, but must be within 1 to {MAX_SAMPLES}.")
        settings = settings or GenerationSettings()
        requests = [self.submit(prompt, replace(settings, seed=sample_seed(settings.seed, i))) for i in range(n)]
        try:
            self.engine.run()
        finally:
            for request in requests:
                self.engine.cancel(request)
        return [complete(list(request.pieces)) for request in requests]


def load(
    target: str | None = None,
    drafter: str | None = None,
    *,
    tree: str = "best_first",
    lookup: bool = True,
    exact: bool = False,
    tree_budget: int | None = None,
    block_size: int | None = None,
    policy: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    threads: int | None = None,
    num_prefixes: int = NUM_PREFIXES,
) -> Model:
    """Load a target and a drafter.

    `target` is a Hugging Face name or folder (None: the embedded SmolLM2-135M-Instruct). `drafter` is a
    checkpoint folder or hub name, "prompt_lookup", or "none"; None means the embedded drafter for the embedded target
    and prompt lookup for any other. `lookup` merges what followed the same words before into the trees that a draft
    network grows by best_first. `exact` refuses a target whose logits depend, in their last bits, on what else is in
    the pass. `policy` decides how much to draft: "fixed:SIZE", "blockpilot:FOLDER", or "cost_aware", which measures
    this machine once (None: `block_size`, or the drafter's own). `dtype` defaults to float32 on a CPU and to the
    checkpoint's elsewhere. The caches of the last `num_prefixes` answers are kept for prompts that begin like them (in
    bfloat16 and float16 such a prompt's text may part from a fresh start's where two tokens nearly tie).

    Raises:
        InputError: unknown names, missing paths, checkpoints that do not fit (and its subclasses).
        DownloadError: the embedded target could not be fetched.
    """
    set_threads(threads)
    target = None if target is None else str(target)
    if drafter == NO_DRAFTER and (block_size is not None or tree_budget is not None):
        raise InputError(
            "block_size and tree_budget say how much to draft, but drafter 'none' does not; leave them out."
        )
    if policy is not None and (drafter == NO_DRAFTER or block_size is not None):
        other = "drafter 'none'" if drafter == NO_DRAFTER else f"block_size {block_size}"
        raise InputError(f"policy {policy!r} and {other} came, but go together badly; leave one of them out.")
    loaded = load_target(target, dtype, device)
    if exact:
        require_exact(loaded)
    tokenizer = load_tokenizer(target)
    drafter = _default_drafter(target) if drafter is None else drafter
    part = load_drafter(drafter, loaded, tree, tree_budget)
    if isinstance(part, DFlashDrafter):
        _warn_of_another_template(drafter, tokenizer)
        if lookup and tree == "best_first":
            part = MixtureDrafter(part, PromptLookupDrafter())
    if num_prefixes < 0:
        raise InputError(f"num_prefixes is {num_prefixes}, but must be 0 (keep none) or more.")
    parts = make_parts(loaded, part, block_size, tree_budget)
    if policy is not None and part is not None:
        pair = functools.partial(pair_digests, target, drafter)
        parts = replace(parts, policy=load_policy(policy, loaded, part, tree_budget, pair))
    return Model(parts, tokenizer, is_embedded=target is None, num_prefixes=num_prefixes)


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
    path = _target_path(name)
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
        raise CheckpointError(f"the target {path!r} cannot be loaded: {_first_line(error)}") from error


def load_tokenizer(name: str | None) -> Any:
    """The target's tokenizer."""
    path = _target_path(name)
    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:
        raise CheckpointError(f"the tokenizer of {path!r} cannot be loaded: {_first_line(error)}") from error


def load_drafter(name: str, target: Target, tree: str = "best_first", tree_budget: int | None = None) -> Drafter | None:
    """A drafter by name or path, checked against the target and ready for its device."""
    if tree not in GROWTHS:
        raise InputError(f"tree is {tree!r}, but must be one of {', '.join(GROWTHS)}.")
    if name == NO_DRAFTER:
        return None
    if name == PROMPT_LOOKUP:
        if tree not in ("best_first", "chain"):
            raise InputError(f"prompt_lookup drafts a chain, but tree {tree!r} was asked for; leave it out.")
        return PromptLookupDrafter()
    network = load_dflash(_drafter_path(name))
    info = target.info
    check_fits(network.config, info.hidden_size, info.vocab_size, info.num_layers, info.name)
    network.attach(target.embedding, target.head)
    network.to(device=info.device, dtype=info.dtype).requires_grad_(False)
    prepare_for_device(network)
    return DFlashDrafter(network, GROWTHS[tree], tree_budget)


def pair_digests(target: str | None, drafter: str | None) -> dict[str, str]:
    """What identifies a target, its chat template and a drafter, named as for `load`."""
    name = _default_drafter(target) if drafter is None else drafter
    return {
        "target_digest": checkpoint_digest(target_folder(target)),
        "drafter_digest": name if name in (PROMPT_LOOKUP, NO_DRAFTER) else checkpoint_digest(_drafter_path(name)),
        "chat_template_sha256": template_digest(load_tokenizer(target).chat_template),
    }


def _default_drafter(target: str | None) -> str:
    return str(embedded_drafter()) if target is None else PROMPT_LOOKUP


def template_digest(template: str | None) -> str:
    """What identifies a chat template in checkpoints and reports."""
    return hashlib.sha256((template or "").encode()).hexdigest()[:16]


def _warn_of_another_template(drafter: str, tokenizer: Any) -> None:
    """A drafter accepts far less under another chat template than the one it was trained on."""
    recorded = read_metadata(_drafter_path(drafter)).get("chat_template_sha256")
    if recorded is not None and recorded != template_digest(tokenizer.chat_template):
        warnings.warn(
            f"the drafter {drafter!r} was trained with another chat template than this tokenizer's; "
            "the text stays right, but expect fewer accepted tokens.",
            stacklevel=3,
        )


def _drafter_path(name: str) -> Path:
    """A folder as it is; a name like `organisation/model` is fetched from the hub once."""
    path = expanded(name)
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        return path
    return _fetch("drafter", name, ["*.json", "*.safetensors"])


def target_folder(name: str | None) -> Path:
    """The folder of a target's checkpoint; a hub name is fetched once, None is the embedded target."""
    path = _target_path(name)
    return (
        Path(path) if Path(path).exists() else _fetch("target", path, ["*.json", "*.safetensors", "*.txt", "*.model"])
    )


def _fetch(what: str, name: str, patterns: list[str]) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds for an unknown name or no network
        raise CheckpointError(
            f"the {what} {name!r} is no folder here and cannot be fetched from the hub: {_first_line(error)}"
        ) from error


def _target_path(name: str | None) -> str:
    if name is None:
        return str(embedded_target())
    path = expanded(name)
    looks_local = name.startswith((".", "/", "~")) or path.exists()
    if looks_local and not (path / "config.json").is_file():
        raise CheckpointError(
            f"the target {name!r} has no config.json; give a Hugging Face model folder or a hub name."
        )
    return str(path) if looks_local else name


def device_named(name: str | None) -> torch.device:
    if name is None:
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(kind)
    if name == "meta":
        raise InputError("device 'meta' holds no numbers; name one that computes, such as cpu.")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here: {_first_line(error)}") from error


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in known:
        raise InputError(f"dtype is {dtype!r}, but must be one of {', '.join(known)}.")
    return known[dtype]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
