"""Flags that several subcommands share, and what they are turned into."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.loading import Model

Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Count = Annotated[int | None, tyro.conf.arg(metavar="INT")]


@dataclass(frozen=True)
class ModelOptions:
    """Which target answers and how it is drafted for."""

    target: Name = None
    """Hugging Face name or folder of the target; the embedded SmolLM2-135M-Instruct where not given."""
    drafter: Name = None
    """Folder or hub name of a drafter, `prompt_lookup`, or `none`; where not given, the embedded drafter for the
    embedded target and prompt lookup for any other."""
    tree: Literal["chain", "top_k", "best_first"] = "best_first"
    """How the draft tree grows."""
    lookup: bool = True
    """Merge what followed the same words before into the trees that a draft network grows by best_first."""
    tree_budget: Count = None
    """Nodes of the draft tree, root excluded; the drafter's own where not given."""
    block_size: Count = None
    """Rows of the drafter's block, anchor included; the drafter's own where not given."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, tyro.conf.arg(metavar="{float32,bfloat16,float16}")
    ] = None
    """Type of the weights; where not given, float32 on a CPU and the checkpoint's own elsewhere."""
    device: Annotated[str | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Where to compute, such as cuda:0, mps or cpu; the best one present where not given."""
    threads: Count = None
    """CPU threads; PyTorch's choice where not given."""


@dataclass(frozen=True)
class SamplingOptions:
    """What one request asks for."""

    max_tokens: int = GenerationSettings.max_tokens
    """Longest answer, in tokens."""
    temperature: float = GenerationSettings.temperature
    """Sampling temperature; 0 is greedy."""
    top_k: int = GenerationSettings.top_k
    """Sample among this many most likely tokens; 0 is off."""
    top_p: float = GenerationSettings.top_p
    """Sample among the most likely tokens that hold this much probability; 1 is off."""
    min_p: float = GenerationSettings.min_p
    """Drop tokens less likely than this fraction of the likeliest; 0 is off."""
    seed: int = GenerationSettings.seed
    """Seed of the sampling noise: same seed, same text, drafted or not."""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = GenerationSettings.stop
    """End the answer before this string; may be given several times."""
    draft: bool = GenerationSettings.draft
    """Draft at all; the text is the same without."""

    def settings(self, raw: bool = False) -> GenerationSettings:
        """The request's settings, validated."""
        return GenerationSettings(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            stop=self.stop,
            draft=self.draft,
            raw=raw,
        )


def load_model(options: ModelOptions, console: Console) -> Model:
    """The model that the flags name; `console` shows what takes time."""
    with console.status("loading") if console.is_terminal else nullcontext() as status:
        from transformers.utils import logging

        from paceline.embedded import embedded_target
        from paceline.loading import load

        logging.disable_progress_bar()
        if options.target is None:
            embedded_target(report=status.update if status else console.print)
        return load(
            options.target,
            options.drafter,
            tree=options.tree,
            lookup=options.lookup,
            tree_budget=options.tree_budget,
            block_size=options.block_size,
            dtype=options.dtype,
            device=options.device,
            threads=options.threads,
        )
