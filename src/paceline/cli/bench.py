"""`paceline bench`: methods x prompts, interleaved in one process."""

from __future__ import annotations

import functools
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import Progress

from paceline.cli.options import Count, GrammarOptions, ModelOptions, Name, load_model
from paceline.errors import InputError
from paceline.policies.spelling import check_spelling
from paceline.prompts import check_length, read_prompts
from paceline.result_files import check_writable, write_json
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.bench.method import Method
    from paceline.text_model import Model

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

#: Methods that are Hugging Face's own.
_REFERENCES: tuple[MethodName, ...] = ("hf", "hf-dflash")


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
    own DFlash and SpecBlock ones where none is given."""
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
    """Nodes of the draft trees, root excluded; the drafter's own where not given."""
    block_size: Count = None
    """Rows of a drafter's block, anchor included; the drafter's own where not given."""
    policies: tuple[str, ...] = ()
    """Run the methods that grow trees under these policies too, such as fixed:SIZE:NODES, blockpilot, cost_aware or
    joint, and compare them with the best fixed one."""
    device: Annotated[str | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Where to compute, such as cuda:0, mps or cpu; the best one present where not given."""
    threads: Count = None
    """CPU threads; PyTorch's choice where not given."""
    repeats: int = 3
    """Times that each method answers each prompt; medians are reported."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write every measurement, with its settings, to this file."""


def run(args: Arguments) -> None:
    """Measure, print the table, write the JSON file."""
    console = Console(highlight=False)
    prompts = read_prompts(args.prompts, args.limit)
    settings = _settings_of_requests(args)
    check_writable(args.json)
    if not args.methods:
        raise InputError("--methods names no method; name at least one.")
    if len(set(args.methods)) < len(args.methods):
        raise InputError("--methods names a method twice; name each method once.")
    for policy in args.policies:
        check_spelling(policy)
    if len(set(args.policies)) < len(args.policies):
        raise InputError("--policies names a policy twice; name each policy once.")
    if args.repeats < 1:
        raise InputError(f"repeats is {args.repeats}, but must be at least 1.")
    _check_reference(args, settings)
    from paceline.bench.methods import GROWING, LEARNING, SAMPLED
    from paceline.bench.policy_comparison import compare_policies
    from paceline.bench.run import WARM_UP_TOKENS, measure
    from paceline.bench.stream import along_the_stream
    from paceline.bench.summary import PLAIN, per_prompt, prompt_key, summarise
    from paceline.bench.table import results_table
    from paceline.near_ties import MAX_GAP_ULPS, find_divergence
    from paceline.provenance import provenance

    if args.repeats > 1 and any(name.endswith(LEARNING) for name in args.methods):
        raise InputError(
            f"repeats is {args.repeats}, but a method that learns knows a prompt the second time; use --repeats 1."
        )
    if args.tree_budget is not None and not GROWING & set(args.methods):
        raise InputError(f"tree_budget is {args.tree_budget}, but no method grows trees; add ddtree, for one.")
    if args.policies and not GROWING & set(args.methods):
        raise InputError("--policies came, but no method whose trees they could size; add mixture, for one.")
    model, methods = _load(args, console, num_queries=1 + len(prompts))
    encoded = [(prompt, model.encode(prompt.text)) for prompt in prompts]
    for prompt, tokens in encoded:
        check_length(prompt, len(tokens), model.target.info.max_context)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(prompts) * len(methods))
        done = measure(methods, encoded, settings, args.repeats, lambda _: progress.advance(task))
    ids = dict(encoded)
    plain = {x.prompt: x.answer.tokens for x in done if x.method == PLAIN}
    divergences = {}
    for x in done if plain else []:
        if args.temperature > 0.0 and x.method in SAMPLED:
            continue  # another sample of the same distribution
        texts = plain[x.prompt], x.answer.tokens
        divergence = find_divergence(model.target, ids[x.prompt], *texts, settings, model.constraint(settings))
        if divergence is not None:
            divergences[prompt_key(x)] = divergence
    rows = summarise(methods, done, divergences)
    facts = provenance(model.target.info, model.tokenizer, sys.argv)
    facts |= {"prompts": len(prompts), "temperature": args.temperature, "max_tokens": args.max_tokens}
    if settings.grammar is not None:
        facts["grammar"] = f"{settings.grammar.kind}: {settings.grammar.source}"
    facts |= {"batch": 1, "repeats": args.repeats, "warm-up": f"{WARM_UP_TOKENS} tokens per method"}
    facts["near-tie"] = f"a gap of at most {MAX_GAP_ULPS} units in the last place of the best logit"
    policies = compare_policies(methods, done)
    stream = along_the_stream(methods, done)
    console.print(results_table(rows, facts, policies, stream))
    if args.json is not None:
        result = {"provenance": facts, "settings": _settings(args), "rows": rows, "policies": policies}
        result["stream"] = stream
        result["per_prompt"] = per_prompt(done)
        write_json(args.json, result)


def _check_reference(args: Arguments, settings: GenerationSettings) -> None:
    """Hugging Face's own generate is compared where it decodes by the same rules."""
    for name in _REFERENCES:
        if name not in args.methods:
            continue
        if args.temperature > 0.0:
            raise InputError(
                f"method {name} compares greedy text, but the temperature is {args.temperature}; leave {name} out."
            )
        if settings.grammar is not None:
            raise InputError(f"method {name} knows no grammar, but a {settings.grammar.kind} came; leave {name} out.")


def _load(args: Arguments, console: Console, num_queries: int) -> tuple[Model, list[Method]]:
    from paceline.bench.methods import Drafting, build_methods
    from paceline.sources import pair_digests
    from paceline.target_loading import load_hugging_face

    options = ModelOptions(
        target=args.target, drafter="none", dtype=args.dtype, device=args.device, threads=args.threads
    )
    model = load_model(options, console)
    hugging_face = None
    if any(name in args.methods for name in _REFERENCES):
        hugging_face = load_hugging_face(args.target, args.dtype, args.device)
    drafting = Drafting(args.drafter, args.tree_budget, args.block_size, args.policies, num_queries)
    pair = functools.partial(pair_digests, args.target)
    return model, build_methods(args.methods, model, hugging_face, drafting, pair)


def _settings_of_requests(args: Arguments) -> GenerationSettings:
    """What every method is asked; drafting sizes are checked here and given to the drafted methods only."""
    settings = GenerationSettings(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        grammar=args.grammar(),
        tree_budget=args.tree_budget,
        block_size=args.block_size,
    )
    return replace(settings, tree_budget=None, block_size=None)


def _settings(args: Arguments) -> dict[str, object]:
    plain = asdict(args)
    plain["prompts"] = [str(path) for path in args.prompts]
    plain["json"] = str(args.json)
    return plain
