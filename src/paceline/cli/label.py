"""`paceline label`: every prompt at every block size, for policies to learn from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.cli.options import Count, ModelOptions, refuse_adapting
from paceline.errors import InputError, PromptTooLongError
from paceline.label.config import LabelConfig
from paceline.prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from paceline.labels import Label


MAX_PROCESSES, MAX_WORKERS = 64, 4096


@dataclass(frozen=True)
class Arguments:
    """Decode prompts at several block sizes, and keep what a policy can learn from. The same command again resumes."""

    out: Path
    """Folder for the labels; one that was begun with the same settings is completed."""
    prompts: tuple[Path, ...] = ()
    """JSON Lines files of prompts; a set of ours where not given."""
    limit: Count = None
    """Use at most this many prompts of each file."""
    block_sizes: tuple[int, ...] = ()
    """Block sizes to try, anchor included; those within --reach of the drafter's own where not given."""
    reach: int = LabelConfig.reach
    """Try the drafter's own block size and this many below and above."""
    max_tokens: int = LabelConfig.max_tokens
    """Longest answer, in tokens."""
    temperature: float = LabelConfig.temperature
    """Sampling temperature; 0 is greedy."""
    seed: int = LabelConfig.seed
    """Seed of the sampling noise."""
    workers: int = 1
    """Processes that share the prompts, each with the models in its memory. Their times disturb one another where
    they share cores or a GPU."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run the workers on the Ray cluster at this address; `local` starts Ray on this machine."""
    gpus: float = 0.0
    """GPUs, or the part of one, that each Ray worker has to itself."""
    model: Annotated[ModelOptions, tyro.conf.arg(name="")] = field(default_factory=ModelOptions)


def run(args: Arguments) -> None:
    """Label what is missing."""
    config = LabelConfig(
        _load_arguments(args.model), args.block_sizes, args.reach, args.max_tokens, args.temperature, args.seed
    )
    _check(args)
    prompts = read_prompts(args.prompts, args.limit)
    from paceline.label.run import label_prompts
    from paceline.sources import pair_digests

    settings = asdict(config) | pair_digests(args.model.target, args.model.drafter)
    settings |= settings.pop("load")
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("labelling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(prompts))

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            if not console.is_terminal:
                console.print(f"{done} of {total} prompts labelled")

        count = label_prompts(args.out, prompts, _as_json(settings), _map(args, config), report)
    done = f"{count} prompts newly labelled in {args.out}"
    print(done if count else f"{args.out} has a label for every prompt already")


def _load_arguments(options: ModelOptions) -> dict[str, Any]:
    """Those of `load`; paths are made absolute, since a worker elsewhere has another working directory."""
    from paceline.checkpoints.files import expanded

    arguments = options.load_arguments()
    for name in ("target", "drafter"):
        given = arguments[name]
        if given is not None and expanded(given).exists():
            arguments[name] = str(expanded(given).absolute())
    return arguments


def _check(args: Arguments) -> None:
    if args.model.block_size is not None:
        raise InputError("--block-size is one size, but labels compare several; name them with --block-sizes.")
    if args.model.policy is not None:
        raise InputError("--policy chooses a block size, but labels compare several; leave it out.")
    refuse_adapting(args.model, "labels compare one drafter")
    if args.model.drafter == "none":
        raise InputError("drafter is 'none', but there is nothing to label without one; name a drafter.")
    most = MAX_WORKERS if args.ray is not None else MAX_PROCESSES
    if not 1 <= args.workers <= most:
        raise InputError(f"workers is {args.workers}, but must be within 1 to {most}: each holds the models.")
    if not (math.isfinite(args.gpus) and args.gpus >= 0):
        raise InputError(f"gpus is {args.gpus}, but must be 0 or more.")
    if args.gpus and args.ray is None:
        raise InputError(f"gpus is {args.gpus}, but only a Ray worker can be given GPUs; add --ray, or leave it out.")


def _map(
    args: Arguments, config: LabelConfig
) -> Callable[[Iterable[Prompt]], Iterator[tuple[Prompt, Label | PromptTooLongError]]]:
    from paceline.label.worker import Labeller
    from paceline.scale import map_here, map_in_processes, map_on_ray

    make = functools.partial(Labeller, config)
    if args.ray is not None:
        return functools.partial(map_on_ray, make, num_workers=args.workers, address=args.ray, num_gpus=args.gpus)
    if args.workers > 1:
        return functools.partial(map_in_processes, make, num_workers=args.workers)
    return functools.partial(map_here, make)


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Tuples become lists, as they come back from a file."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
