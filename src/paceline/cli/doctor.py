"""`paceline doctor`: what a drafter's checkpoint is, what is wrong with it, and what it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.options import Count, Name
from paceline.errors import InputError, PacelineError
from paceline.prompts import read_prompts
from paceline.result_files import check_writable, write_json
from paceline.types import GenerationSettings

if TYPE_CHECKING:
    from paceline.doctor.beside_target import TargetFacts
    from paceline.doctor.examine import Report
    from paceline.doctor.measured import Measured
    from paceline.prompts import Prompt

_FAULTY = 1


@dataclass(frozen=True)
class Arguments:
    """Say what a drafter's checkpoint is, what is wrong with it, and what it accepts; the exit code says whether it is
    sound (1: there is an error; with --strict, a warning)."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")]
    """Folder or hub name of a drafter, in any dialect; `dflash`, `specblock`, `eagle3` and `heads` are those that come
    with the embedded target."""
    target: Name = None
    """Hugging Face name or folder of its target; the embedded SmolLM2-135M-Instruct, if it fits, where not given."""
    measure: bool = True
    """Draft a few answers of the target, as the checkpoint says and under the conventions that it may have meant."""
    prompts: tuple[Path, ...] = ()
    """JSON Lines files of prompts to measure on; a set of ours where not given."""
    limit: Count = 8
    """Use at most this many prompts of each file."""
    max_tokens: int = 48
    """Longest answer, in tokens."""
    strict: bool = False
    """Let the exit code say of warnings, too."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write what was found to this file."""
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, tyro.conf.arg(metavar="{float32,bfloat16,float16}")
    ] = None
    """Type of the weights to measure with; where not given, float32 on a CPU and the checkpoint's own elsewhere."""
    device: Annotated[str | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Where to compute, such as cuda:0, mps or cpu; the best one present where not given."""
    threads: Count = None
    """CPU threads; PyTorch's choice where not given."""


def run(args: Arguments) -> int:
    """Check, measure where it loads, print; the exit code."""
    from paceline.doctor.examine import examine
    from paceline.doctor.measured import judge
    from paceline.loading import set_threads
    from paceline.sources import drafter_path
    from paceline.target_loading import device_named

    console = Console(highlight=False)
    check_writable(args.json, "--json")
    GenerationSettings(max_tokens=args.max_tokens)  # refuses what no request may ask for
    prompts = read_prompts(args.prompts, args.limit)
    set_threads(args.threads)
    device_named(args.device)  # refuses what there is not
    path = drafter_path(args.path)
    target = _target(args, path)
    report = examine(path, target)
    measured = _measured(args, report, target, prompts, console)
    if not isinstance(measured, str) and report.opened is not None:
        report.findings = [finding for finding in report.findings if not finding.is_provisional]
        report.findings += judge(report.opened, measured)
    _print(console, report, target, measured)
    if args.json is not None:
        write_json(args.json, _as_json(report, target, measured))
    return _FAULTY if report.has_errors or (args.strict and report.findings) else 0


def _target(args: Arguments, path: Path) -> TargetFacts | None:
    """The target that was named, or the embedded one where the drafter was made for one of its sizes."""
    from paceline.checkpoints.files import CONFIG, read_config
    from paceline.checkpoints.speculators import read_plain_config
    from paceline.doctor.beside_target import read_target
    from paceline.embedded import SMOLLM2_135M

    if args.target is not None:
        return read_target(args.target)
    if not (path / CONFIG).is_file():
        read_config(path)  # says what is wrong
    try:
        sizes = read_plain_config(path)
    except InputError:
        return None
    width = sizes.get("target_hidden_size") or sizes.get("hidden_size")
    depth = sizes.get("num_target_layers") or SMOLLM2_135M.num_layers
    came = (width, sizes.get("vocab_size"), depth)
    fits = came == (SMOLLM2_135M.hidden_size, SMOLLM2_135M.vocab_size, SMOLLM2_135M.num_layers)
    return read_target(None) if fits else None


def _measured(
    args: Arguments, report: Report, target: TargetFacts | None, prompts: Sequence[Prompt], console: Console
) -> Measured | str:
    """What it accepts, or why that is not known: a finding is not lost because a target does not load."""
    if not args.measure:
        return "--no-measure was given"
    if report.opened is None or report.opened.network is None or report.has_errors:
        return "it cannot be loaded as it is"
    if target is None:
        return "no target was given, and the embedded one does not fit"
    from paceline.doctor.measured import measure
    from paceline.target_loading import load_target

    said = "the target answers, and the drafter drafts it again"
    try:
        with console.status(said) if console.is_terminal else nullcontext():
            loaded = load_target(args.target, args.dtype, args.device)
            return measure(report.opened, target, loaded, prompts, args.max_tokens)
    except PacelineError as problem:
        return str(problem).removesuffix(".")


def _print(console: Console, report: Report, target: TargetFacts | None, measured: Measured | str) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    facts = report.facts | {"target": "not given" if target is None else target.name}
    if not isinstance(measured, str):
        shown = ", ".join(f"{tau:.2f} {name}" for name, tau in measured.acceptance.items())
        facts["acceptance"] = f"{shown} (tokens a round, bonus included; {measured.rounds} rounds with its own tree)"
    for name, value in facts.items():
        table.add_row(Text(name), Text(value))
    console.print(table)
    for finding in report.findings:
        console.print()
        console.print(Text(f"{finding.severity.value}: {finding.check}: {finding.what}."), soft_wrap=True)
        console.print(Text(f"  {finding.meaning}"), soft_wrap=True)
        console.print(Text(f"  To do: {finding.action}"), soft_wrap=True)
    console.print()
    count = len(report.findings)
    console.print("Nothing is wrong." if not count else f"{count} finding{'' if count == 1 else 's'}.", soft_wrap=True)
    if isinstance(measured, str):
        console.print(Text(f"Nothing was measured: {measured}."), soft_wrap=True)
    elif measured.undecided:
        said = " and ".join(measured.undecided)
        console.print(Text(f"Not told apart from what is stored on {measured.rounds} rounds: {said}."), soft_wrap=True)


def _as_json(report: Report, target: TargetFacts | None, measured: Measured | str) -> dict[str, object]:
    return {
        "path": str(report.path),
        "target": None if target is None else target.name,
        "facts": report.facts,
        "findings": [asdict(finding) | {"severity": finding.severity.value} for finding in report.findings],
        "acceptance": None if isinstance(measured, str) else measured.acceptance,
        "not_measured": measured if isinstance(measured, str) else None,
    }
