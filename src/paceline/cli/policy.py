"""`paceline policy`: what a block-size policy is worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from paceline.cli.reliability import Reliability, reliability
from paceline.errors import InputError
from paceline.result_files import check_folder, write_json

if TYPE_CHECKING:
    from paceline.bench.acceptance_tables import AcceptanceTable
    from paceline.bench.policy_report import Row
    from paceline.labels import Label


@dataclass(frozen=True)
class Report:
    """Compare fixed block sizes, the best fixed one, a policy and the per-prompt oracle, on labels or on a table."""

    data: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="LABELS")]
    """Folder of `paceline label`, or a JSON table of acceptance lengths by block size."""
    policy: Path | None = None
    """Folder of a policy to judge on the labels; give prompts that it was not trained on."""
    training: Path | None = None
    """Labels on which the best fixed size is chosen; where not given, each half of the prompts chooses for the
    other."""
    block_sizes: tuple[int, ...] = ()
    """Candidates; all that the labels have, or those within a table's published selection, where not given."""
    out: Path | None = None
    """Folder for figures (PNG and SVG) and report.json."""


@dataclass(frozen=True)
class Show:
    """Say what a policy is: its block sizes, what it reads, which pair it was trained for and how."""

    policy: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder of a policy."""


@dataclass(frozen=True)
class Arguments:
    """Judge block-size policies, and say what they are."""

    what: Annotated[
        Annotated[Report, tyro.conf.subcommand("report", description=Report.__doc__)]
        | Annotated[Reliability, tyro.conf.subcommand("reliability", description=Reliability.__doc__)]
        | Annotated[Show, tyro.conf.subcommand("show", description=Show.__doc__)],
        tyro.conf.arg(name=""),
    ]


def run(args: Arguments) -> None:
    """Do one of the three."""
    if isinstance(args.what, Report):
        report(args.what)
    elif isinstance(args.what, Reliability):
        reliability(args.what)
    else:
        show(args.what)


def show(args: Show) -> None:
    """The checkpoint's own words, as JSON."""
    from paceline.checkpoints.policy import load_policy

    head, about = load_policy(args.policy)
    print(json.dumps({"network": asdict(head.config), **about}, indent=1))


def report(args: Report) -> None:
    """Tau first; tokens/s where they were measured."""
    from paceline.bench.acceptance_tables import joined, read_tables
    from paceline.bench.drawing import check_matplotlib
    from paceline.bench.policy_figures import write_figures

    console = Console(highlight=False)
    if args.out is not None:
        check_matplotlib()
        check_folder(args.out)
    tables = read_tables(args.data, args.block_sizes, _choice(args))
    training = joined(read_tables(args.training, tables[0].block_sizes)) if args.training is not None else None
    shown = [*tables, joined(tables)] if len(tables) > 1 else tables
    judges = ["tau"] if tables[0].tokens_per_s is None else ["tau", "tokens_per_s"]
    found = {judge: _rows(shown, training, judge) for judge in judges}
    for judge, rows in found.items():
        console.print(_table(rows, judge))
    _print_agreement(console, tables)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        for judge in judges:
            write_figures(tables, judge, args.out)
        write_json(args.out / "report.json", {"rows": [asdict(row) for rows in found.values() for row in rows]})


def _rows(tables: list[AcceptanceTable], training: AcceptanceTable | None, judge: str) -> list[Row]:
    from paceline.bench.policy_report import report_rows

    chosen_on = training.values(judge) if training is not None else None
    return [row for table in tables for row in report_rows(table, judge, chosen_on)]


def _choice(args: Report) -> Callable[[Label], int] | None:
    if args.policy is None:
        return None
    from paceline.checkpoints.policy import check_pair, load_policy
    from paceline.labels import recorded_pair

    head, about = load_policy(args.policy)
    if args.data.is_dir():
        check_pair(about, recorded_pair(args.data), args.policy)
    if head.config.predicts != "best_size":
        raise InputError(
            f"{args.policy} was trained with --predict {head.config.predicts}, for the joint policy, "
            "but a report judges policies that choose a block size; name one of those."
        )
    return lambda label: head.choose(label.logits, label.features if len(label.features) else None, label.hidden)


def _table(rows: list[Row], judge: str) -> Table:
    from paceline.bench.policy_report import BEST_FIXED

    title = {"tau": "Acceptance length (tokens per round, bonus included)", "tokens_per_s": "Tokens/s"}[judge]
    table = Table(title=f"{title}: mean over prompts", title_justify="left", box=None, pad_edge=False)
    table.caption = (
        f"{BEST_FIXED}: chosen on --training, or for each half of the prompts on the other half; gain: over it; "
        "hits: prompts on which the choice is as good as the oracle's"
    )
    table.caption_justify = "left"
    for name in ("set", "prompts", "method", "size"):
        table.add_column(name, no_wrap=True)
    for name in ("mean", "gain", "95% interval", "regret", "hits"):
        table.add_column(name, justify="right", no_wrap=True)
    last = ""
    for row in rows:
        if last and row.set_name != last:
            table.add_section()
        last = row.set_name
        table.add_row(
            row.set_name, str(row.prompts), row.method, row.size, f"{row.mean:.3f}", f"{row.gain:.3f}",
            f"{row.gain_low:.3f}-{row.gain_high:.3f}", f"{row.regret:.3f}", f"{row.hits}/{row.prompts}",
        )  # fmt: skip
    return table


def _print_agreement(console: Console, tables: list[AcceptanceTable]) -> None:
    """A selection that is the oracle's on every prompt was made with knowledge of the outcome."""
    from paceline.bench.acceptance_tables import PUBLISHED

    if any(PUBLISHED not in table.selections for table in tables):
        return
    columns: list[tuple[Any, Any]] = [(table.selections[PUBLISHED], table.tau) for table in tables]
    equal = sum(int((tau[range(len(tau)), chosen] == tau.max(1)).sum()) for chosen, tau in columns)
    count = sum(len(table) for table in tables)
    console.print(f"The published selection equals the oracle on {equal} of {count} prompts.")
