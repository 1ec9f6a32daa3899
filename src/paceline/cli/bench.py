"""`paceline bench`: methods x prompts, interleaved in one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from paceline.cli.options import Count, Name

Method = Literal["plain", "hf", "prompt_lookup", "dflash", "ddtree"]


@dataclass(frozen=True)
class Arguments:
    """Compare methods on the same prompts, target and machine: tokens/s, speed-up, acceptance length."""

    prompts: tuple[Path, ...] = ()
    """JSON Lines files of prompts; a set of ours where not given."""
    methods: tuple[Method, ...] = ("plain", "prompt_lookup", "dflash", "ddtree")
    """What to compare; speed-ups are over `plain`."""
    target: Name = None
    """Hugging Face name or folder of the target; the embedded SmolLM2-135M-Instruct where not given."""
    drafter: Name = None
    """Folder of the drafter for dflash and ddtree; the embedded one for the embedded target."""
    limit: Count = None
    """Use at most this many prompts of each file."""
    max_tokens: int = 256
    """Longest answer, in tokens."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, tyro.conf.arg(metavar="{float32,bfloat16,float16}")
    ] = None
    """Type of the weights; where not given, float32 on a CPU and the checkpoint's own elsewhere."""
    tree_budget: Count = None
    """Nodes of the draft tree, root excluded; the drafter's own where not given."""
    block_size: Count = None
    """Rows of the drafter's block, anchor included; the drafter's own where not given."""
    threads: Count = None
    """CPU threads; PyTorch's choice where not given."""
    repeats: int = 3
    """Times that each method answers each prompt; medians are reported."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write every measurement, with its settings, to this file."""
