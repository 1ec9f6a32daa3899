"""`paceline calibrate`: what a round costs on this machine."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from paceline.cli.options import ModelOptions, load_model, refuse_adapting
from paceline.errors import InputError
from paceline.result_files import check_writable, write_json

if TYPE_CHECKING:
    from paceline.policies.costs import Costs


@dataclass(frozen=True)
class Arguments:
    """Measure how long drafts and passes take here, by size, and keep it for the policies cost_aware and joint."""

    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write the costs to this file too."""
    model: Annotated[ModelOptions, tyro.conf.arg(name="")] = field(default_factory=ModelOptions)


def run(args: Arguments) -> None:
    """Measure anew, keep and print."""
    console = Console(highlight=False)
    check_writable(args.json, "--json")
    for flag, value in (("--policy", args.model.policy), ("--block-size", args.model.block_size)):
        if value is not None:
            raise InputError(f"{flag} came, but costs are measured for every policy and block size; leave it out.")
    refuse_adapting(args.model, "nothing is served here")
    model = load_model(args.model, console)
    if model.drafter is None:
        raise InputError("drafter is 'none', but there is nothing to weigh without one; name a drafter.")
    from paceline.calibrate import costs_path, default_max_budget, keep_costs, measure_costs, unsteady
    from paceline.sources import pair_digests

    budget = args.model.tree_budget or default_max_budget(model.target.info.device)
    pair = pair_digests(args.model.target, args.model.drafter)
    with console.status("measuring") if console.is_terminal else nullcontext() as status:
        costs = measure_costs(model.target, model.drafter, budget, status.update if status else console.print)
    _print(console, costs)
    if not costs.is_steady:
        console.print(f"{unsteady(costs)}; measure again when it does not.", soft_wrap=True)
    if args.json is not None:
        write_json(args.json, costs.as_json())
    path = costs_path(model.target, model.drafter, budget, pair)
    keep_costs(path, costs, model.target, model.drafter, budget, pair)
    console.print(f"kept in {path}", soft_wrap=True)


def _print(console: Console, costs: Costs) -> None:
    console.print("Milliseconds of a pass, by rows (root included)")
    passes = Table(box=None)
    passes.add_column("rows", justify="right")
    for context in costs.contexts:
        passes.add_column(f"after {context} tokens", justify="right")
    for rows in costs.verify[0].sizes:
        passes.add_row(str(rows), *(f"{1e3 * costs.verify_s(rows, context):.1f}" for context in costs.contexts))
    console.print(passes)
    console.print("Milliseconds of a draft, by block size (anchor included)")
    drafts = Table(box=None)
    drafts.add_column("block size", justify="right")
    drafts.add_column("draft", justify="right")
    for size, seconds in zip(costs.draft.sizes, costs.draft.seconds, strict=True):
        drafts.add_row(str(size), f"{1e3 * seconds:.1f}")
    console.print(drafts)
    console.print(f"the rest of a round: {1e3 * costs.other:.1f} ms")
