"""`paceline bench`: methods x prompts, interleaved in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress, TaskID

from paceline.cli.options import Count, GrammarOptions, Name, Thinking, as_switch
from paceline.errors import InputError
from paceline.policies.spelling import check_spelling
from paceline.prompts import Prompt, read_prompts
from paceline.result_files import check_writable, write_json
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.bench.config import BenchConfig
    from paceline.bench.results import Results
    from paceline.bench.work import Map
    from paceline.bench.worker import Worker

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
    turns: Count = None
    """Ask at most this many turns of each prompt; all where not given. Later turns follow the first method's answer."""
    max_tokens: int = 256
    """Longest answer, in tokens."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, tyro.conf.arg(metavar="{float32,bfloat16,float16}")
    ] = None
    """Type of the weights; where not given, float32 on a CPU and the checkpoint's own elsewhere."""
    thinking: Thinking = None
    """Thinking mode, for targets whose chat template has one; as the template does by itself where not given."""
    tree_budget: Count = None
    """Nodes of the draft trees, root excluded; the drafter's own where not given."""
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


def run(args: Arguments) -> None:
    """Measure, print the table, write the files."""
    console = Console(highlight=False)
    prompts = read_prompts(args.prompts, args.limit)
    if args.turns is not None:
        prompts = [replace(prompt, later=prompt.later[: args.turns - 1]) for prompt in prompts]
    settings = _settings_of_requests(args)
    _check(args, prompts)
    from paceline.bench.config import BenchConfig
    from paceline.bench.sweep import parse_sweeps

    sweeps = parse_sweeps(args.sweep)
    config = BenchConfig(
        methods=args.methods,
        prompts=tuple(prompts),
        asking=settings,
        target=args.target,
        drafters=args.drafter,
        tree_budget=args.tree_budget,
        block_size=args.block_size,
        policies=args.policies,
        sweeps=tuple(sweeps),
        dtype=args.dtype,
        thinking=as_switch(args.thinking),
        device=args.device,
        threads=args.threads,
        repeats=args.repeats,
        judged=args.judge,
        command=("paceline", *sys.argv[1:]),
    )
    _check_methods(args, config)
    results, worker = _measure(args, config, console)
    if results is not None:
        _show(args, config, results, worker, console)


def _measure(args: Arguments, config: BenchConfig, console: Console) -> tuple[Results | None, Worker | None]:
    """What was measured, and the worker where it is in this process; nothing where another process has it all."""
    from paceline.bench.launched import is_launched, measure_launched
    from paceline.bench.work import measure_missing

    if is_launched():
        if args.ray is not None:
            raise InputError("--ray came, but a launcher started this; use one of both.")
        return measure_launched(config, args.results), None
    here: list[Worker] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("loading", total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, description="measuring", completed=done, total=total)

        def make() -> Worker:
            from paceline.bench.worker import make_worker

            say = partial(_describe, progress, task) if console.is_terminal else console.print
            here.append(make_worker(config, say))
            return here[0]

        results = measure_missing(config, args.results, _map(args, config, make), show)
    return results, here[0] if here else None


def _map(args: Arguments, config: BenchConfig, make: Callable[[], Worker]) -> Map:
    from paceline.scale import map_here, map_on_ray

    if args.ray is None:
        return lambda items: map_here(make, items)
    from paceline.bench.worker import make_worker

    there = partial(make_worker, config, _say_nothing, None)
    return lambda items: map_on_ray(there, items, args.workers, args.ray or "", args.gpus)


def _describe(progress: Progress, task: TaskID, text: str) -> None:
    progress.update(task, description=text)


def _say_nothing(text: str) -> None:
    """A worker elsewhere has nobody to talk to."""


def _show(args: Arguments, config: BenchConfig, results: Results, worker: Worker | None, console: Console) -> None:
    from paceline.bench.measurement import as_json
    from paceline.bench.policy_comparison import compare_policies
    from paceline.bench.results import asked_apart
    from paceline.bench.stream import along_the_stream
    from paceline.bench.summary import slower_than_hugging_face, summarise
    from paceline.bench.table import results_table

    parts: list[dict[str, Any]] = []
    for asked, done in asked_apart(results.measurements):
        rows = summarise(results.methods, done)
        policies = compare_policies(results.methods, done)
        stream = along_the_stream(worker.bench.methods, done) if worker is not None else []
        parts.append({"asked": asked, "rows": rows, "policies": policies, "stream": stream})
        if len(config.requests()) > 1:
            console.print(", ".join(f"{name} {value:g}" for name, value in asked.items()), style="bold")
        console.print(results_table(rows, results.provenance, policies, stream))
        if warning := slower_than_hugging_face(rows):
            console.print(warning, style="bold")
    if args.json is not None:
        result: dict[str, Any] = {"provenance": results.provenance, "settings": _settings(args), **parts[0]}
        result["requests"] = parts
        result["per_prompt"] = [as_json(x) for x in results.measurements]
        write_json(args.json, result)


def _check(args: Arguments, prompts: list[Prompt]) -> None:
    """Refuse what needs no models to be refused."""
    check_writable(args.json, "--json")
    check_writable(args.results, "--results")
    if args.json is not None and args.results is not None and args.json.absolute() == args.results.absolute():
        raise InputError("--json and --results name the same file; name two.")
    if not args.methods:
        raise InputError("--methods names no method; name at least one.")
    if len(set(args.methods)) < len(args.methods):
        raise InputError("--methods names a method twice; name each method once.")
    for policy in args.policies:
        check_spelling(policy)
    if len(set(args.policies)) < len(args.policies):
        raise InputError("--policies names a policy twice; name each policy once.")
    for name, least in (("repeats", 1), ("turns", 1), ("workers", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"{name} is {value}, but must be at least {least}.")
    if args.ray is None and (args.workers > 1 or args.gpus > 0.0):
        raise InputError(
            "--workers and --gpus are of a Ray cluster; add --ray, or launch several processes (docs/benchmarks.md)."
        )
    if len({(prompt.set_name, prompt.id) for prompt in prompts}) < len(prompts):
        raise InputError("two prompts have the same set and id, so that nobody could tell them apart; rename one.")
    if args.judge:
        from paceline.bench.judging.judge import check_judging

        check_judging(args.judge, prompts)


def _check_methods(args: Arguments, config: BenchConfig) -> None:
    """Refuse methods that cannot do what is asked of them."""
    for settings, _ in config.requests():
        _check_reference(args, settings)
    from paceline.bench.methods import GROWING, LEARNING, sizes_used

    learning = [name for name in args.methods if name.endswith(LEARNING)]
    if learning and args.repeats > 1:
        raise InputError(
            f"repeats is {args.repeats}, but a method that learns knows a prompt the second time; use --repeats 1."
        )
    if learning and (args.results is not None or args.ray is not None or config.sweeps):
        raise InputError(
            f"method {learning[0]} learns from all that it has served, which --results, --ray and --sweep would take "
            "apart; leave it out, or keep its figures with --json."
        )
    if args.tree_budget is not None and not GROWING & set(args.methods):
        raise InputError(f"tree_budget is {args.tree_budget}, but no method grows trees; add ddtree, for one.")
    if args.policies and not GROWING & set(args.methods):
        raise InputError("--policies came, but no method whose trees they could size; add mixture, for one.")
    for sweep in config.sweeps:
        if getattr(args, sweep.name, None) not in (None, getattr(Arguments, sweep.name, None)):
            raise InputError(f"{sweep.name} came and is swept; leave one of both out.")
        if sweep.name in ("block_size", "tree_budget"):
            if not any(sweep.name in sizes_used(name) for name in args.methods):
                raise InputError(f"--sweep {sweep.name} came, but no method has one; add ddtree, for one.")
        elif len(sweep.values) > 1 and args.policies:
            raise InputError(f"--sweep {sweep.name} and --policies came; compare policies at one {sweep.name} a run.")


def _check_reference(args: Arguments, settings: GenerationSettings) -> None:
    """Hugging Face's own generate is compared where it decodes by the same rules."""
    for name in _REFERENCES:
        if name not in args.methods:
            continue
        if settings.temperature > 0.0:
            raise InputError(
                f"method {name} compares greedy text, but the temperature is {settings.temperature}; leave {name} out."
            )
        if settings.grammar is not None:
            raise InputError(f"method {name} knows no grammar, but a {settings.grammar.kind} came; leave {name} out.")
        if settings.edits_logits:
            raise InputError(
                f"method {name} knows no penalties and no min_tokens, but they are swept; leave {name} out."
            )


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
    return plain | {"json": str(args.json), "results": str(args.results)}
