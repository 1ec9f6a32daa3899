"""`paceline bench`: methods x prompts, interleaved in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, TaskID

from paceline.cli.bench_arguments import Arguments
from paceline.cli.bench_checks import check_arguments, check_methods
from paceline.cli.options import as_switch
from paceline.errors import InputError
from paceline.prompts import read_prompts
from paceline.result_files import write_json
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.bench.config import BenchConfig
    from paceline.bench.results import Results
    from paceline.bench.work import Map
    from paceline.bench.worker import Worker


_MAX_TOKENS = 256
_WIDTH = 140
"""Columns of text where nothing says how many there are."""


def run(args: Arguments) -> None:
    """Measure, print the table, write the files."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    prompts = read_prompts(args.prompts, args.limit)
    if args.turns is not None:
        prompts = [replace(prompt, later=prompt.later[: args.turns - 1]) for prompt in prompts]
    settings = _settings_of_requests(args)
    check_arguments(args, prompts)
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
    check_methods(args, config)
    try:
        results, worker = _measure(args, config, console)
    except KeyboardInterrupt:
        if args.results is not None and args.results.exists():
            print(f"the prompts that were measured are in {args.results}; the same command goes on", file=sys.stderr)
        raise
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
            if done and not (console.is_terminal and here):
                console.print(f"{done} of {total} prompts are measured")

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
    from paceline.bench.wording import shown

    parts: list[dict[str, Any]] = []
    for asked, done in asked_apart(results.measurements):
        rows = summarise(results.methods, done)
        policies = compare_policies(results.methods, done)
        stream = along_the_stream(worker.bench.methods, done) if worker is not None else []
        parts.append({"asked": asked, "rows": rows, "policies": policies, "stream": stream})
        if len(config.requests()) > 1:
            console.print(", ".join(f"{name} {shown(value)}" for name, value in asked.items()), style="bold")
        console.print(results_table(rows, results.provenance, policies, stream))
        if warning := slower_than_hugging_face(rows):
            console.print(warning, style="bold")
    if args.json is not None:
        result: dict[str, Any] = {"provenance": results.provenance, "settings": _settings(args), **parts[0]}
        result["requests"] = parts
        result["per_prompt"] = [as_json(x) for x in results.measurements]
        write_json(args.json, result)


def _settings_of_requests(args: Arguments) -> GenerationSettings:
    """What every method is asked; drafting sizes are checked here and given to the drafted methods only."""
    settings = GenerationSettings(
        max_tokens=_MAX_TOKENS if args.max_tokens is None else args.max_tokens,
        temperature=0.0 if args.temperature is None else args.temperature,
        grammar=args.grammar(),
        tree_budget=args.tree_budget,
        block_size=args.block_size,
    )
    return replace(settings, tree_budget=None, block_size=None)


def _settings(args: Arguments) -> dict[str, object]:
    plain = asdict(args)
    plain["prompts"] = [str(path) for path in args.prompts]
    return plain | {"json": str(args.json), "results": str(args.results)}
