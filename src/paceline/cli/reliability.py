"""`paceline policy reliability`: whether nodes are accepted as often as their chances say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.cli.options import Count, ModelOptions, load_model, refuse_adapting
from paceline.errors import InputError
from paceline.prompts import check_length, read_prompts
from paceline.result_files import check_folder, write_json
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.text_model import Model


@dataclass(frozen=True)
class Reliability:
    """Decode prompts, and compare the chances of nodes with the shares of them that were accepted: the drafter's own
    chances, the calibrated ones, and those that know how hard the request is."""

    prompts: tuple[Path, ...] = ()
    """JSON Lines files of prompts; a set of ours where not given."""
    limit: Count = None
    """Use at most this many prompts of each file."""
    max_tokens: int = 128
    """Longest answer, in tokens."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    out: Path | None = None
    """Folder for the figure (PNG and SVG) and reliability.json."""
    model: Annotated[ModelOptions, tyro.conf.arg(name="")] = field(default_factory=ModelOptions)


def reliability(args: Reliability) -> None:
    """Decode, print, and write."""
    console = Console(highlight=False)
    if args.model.policy is not None and not args.model.policy.startswith("fixed:"):
        raise InputError(
            f"policy is {args.model.policy!r}, but chances are compared under a fixed plan; name fixed:SIZE:NODES."
        )
    refuse_adapting(args.model, "chances are those of one drafter")
    prompts = read_prompts(args.prompts, args.limit)
    settings = GenerationSettings(max_tokens=args.max_tokens, temperature=args.temperature)
    from paceline.bench.drawing import check_matplotlib

    if args.out is not None:
        check_matplotlib()
        check_folder(args.out)
    model = load_model(args.model, console)
    if model.drafter is None:
        raise InputError("drafter is 'none', but there are no chances without one; name a drafter.")
    encoded = [(prompt, model.encode(prompt.text)) for prompt in prompts]
    for prompt, tokens in encoded:
        check_length(prompt, len(tokens), model.target.info.max_context)
    rows = _watch(model, [tokens for _, tokens in encoded], settings, console)
    console.print(_table(rows))
    if args.out is not None:
        from paceline.bench.reliability import write_figure

        args.out.mkdir(parents=True, exist_ok=True)
        write_figure(rows, args.out)
        write_json(args.out / "reliability.json", {"prompts": len(prompts), "rows": rows})


def _watch(
    model: Model, prompts: list[list[int]], settings: GenerationSettings, console: Console
) -> list[dict[str, Any]]:
    from paceline.bench.reliability import WatchedPolicy, summary
    from paceline.engine import Engine

    assert model.parts.policy is not None, "it drafts"
    watched = WatchedPolicy(model.parts.policy)
    engine = Engine(replace(model.parts, policy=watched), max_batch=1)
    with Progress(console=console, transient=True) as progress:
        for prompt in progress.track(prompts, description="decoding"):
            engine.submit(prompt, settings)
            engine.run()
    return summary(watched)


def _table(rows: list[dict[str, Any]]) -> Table:
    title = f"{rows[0]['rounds']} rounds, {rows[0]['nodes']} nodes; of each bin of chances, the share accepted"
    table = Table(title=title, box=None, title_justify="left")
    table.add_column("chance")
    edges = sorted({(one["low"], one["high"]) for row in rows for one in row["bins"]})
    for row in rows:
        table.add_column(row["chances"], justify="right")
    for low, high in edges:
        cells = [next((one for one in row["bins"] if one["low"] == low), None) for row in rows]
        table.add_row(f"{low:.2f}-{high:.2f}", *(f"{c['accepted']:.3f} of {c['nodes']}" if c else "-" for c in cells))
    table.add_row("kept a round", *(f"{row['kept']:.3f}" for row in rows))
    table.add_row("expected", *(f"{row['expected']:.3f}" for row in rows))
    table.add_row("log loss", *(f"{row['log_loss']:.4f}" for row in rows))
    return table
