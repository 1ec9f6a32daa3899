"""The flags of `paceline bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from paceline.cli.options import Count, GrammarOptions, Name, Thinking

MethodName = Literal[
    "plain",
    "hf",
    "hf-dflash",
    "prompt_lookup",
    "dflash",
    "ddtree",
    "ddtree_unshared",
    "mixture",
    "specblock",
    "specblock-static",
    "specblock-adapt",
    "ddtree-adapt",
    "eagle3",
    "eagle3-static",
    "eagle3-adapt",
    "mixture-adapt",
    "heads",
    "heads-static",
    "small-model",
    "small-model-tree",
    "dflash_reject",
    "dflash_block",
]


@dataclass(frozen=True)
class Arguments(GrammarOptions):
    """Compare methods on the same prompts, target and machine: tokens/s, speed-up, acceptance length."""

    prompts: tuple[Path, ...] = ()
    """JSON Lines files of prompts, or names of prompt sets (gsm8k, math500, humaneval, ...) that are fetched from the
    hub; a set of ours where not given."""
    methods: tuple[MethodName, ...] = ("plain", "prompt_lookup", "dflash", "ddtree", "mixture")
    """What to compare; speed-ups are over `plain`. hf: transformers' generate, hf-dflash: its DFlash generation with
    our drafter; dflash: a chain, ddtree: the best tree, ddtree_unshared: without knowledge of the sampling noise,
    mixture: with prompt lookup's copies; dflash_reject and dflash_block: chains drawn from the drafter, accepted by
    those rules; -static: a tree of fixed shape; -adapt: the drafter learns while it serves; heads: parallel heads;
    small-model and small-model-tree: a smaller language model."""
    target: Name = None
    """Hugging Face name or folder of the target; the embedded SmolLM2-135M-Instruct where not given."""
    drafter: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME...")] = ()
    """Folders or hub names of drafters, one of each kind at most: a DFlash one serves dflash, ddtree and mixture, a
    SpecBlock or EAGLE-3 one, parallel heads or a small language model the methods named so. The embedded target has its
    own DFlash, SpecBlock and EAGLE-3 ones and its own heads, where none is given."""
    limit: Count = None
    """Use at most this many prompts of each file."""
    turns: Count = None
    """Ask at most this many turns of each prompt; all where not given. Later turns follow the first method's answer."""
    max_tokens: Count = None
    """Longest answer, in tokens; 256 where not given."""
    temperature: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Sampling temperature; 0, greedy, where not given."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, tyro.conf.arg(metavar="{float32,bfloat16,float16}")
    ] = None
    """Type of the weights; where not given, float32 on a CPU and the checkpoint's own elsewhere."""
    thinking: Thinking = None
    """Thinking mode, for targets whose chat template has one; as the template does by itself where not given."""
    tree_budget: Count = None
    """Nodes of the draft trees, root excluded, of methods that grow trees (chains, prompt lookup's too, are as long as
    their block); the drafter's own where not given."""
    block_size: Count = None
    """Rows of a drafter's block, anchor included; the drafter's own where not given."""
    policies: tuple[str, ...] = ()
    """Run the methods that grow trees under these policies too, such as fixed:SIZE:NODES, blockpilot, cost_aware or
    joint, and compare them with the best fixed one."""
    sweep: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=V1,V2,...")] = ()
    """Run at each of several values: block_size or tree_budget (each method that has them), or what every request asks
    (temperature, max_tokens, top_k, top_p, ...); may be given several times, for all combinations."""
    device: Annotated[str | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Where to compute, such as cuda:0, mps or cpu; the best one present where not given."""
    threads: Count = None
    """CPU threads; PyTorch's choice where not given."""
    repeats: int = 3
    """Times that each method answers each prompt; medians are reported."""
    judge: tuple[Literal["answers", "programs"], ...] = ()
    """Count the right answers too, where prompts have a reference: answers compares results of calculations, programs
    RUNS the code that the model wrote with the set's tests, in a process with limits of time and memory."""
    results: Annotated[Path | None, tyro.conf.arg(metavar="OUT.jsonl")] = None
    """Append every measurement to this file as soon as it is there; the same command goes on with a file that it was
    killed at, and `paceline report` makes tables and figures of it."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Share the prompts among workers on the Ray cluster at this address; `local` starts Ray on this machine."""
    workers: int = 1
    """Workers on the cluster."""
    gpus: float = 0.0
    """GPUs, or the part of one, that each Ray worker has to itself."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write the rows of the table, with their settings, and every measurement to this file."""
