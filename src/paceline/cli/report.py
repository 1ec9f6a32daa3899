"""`paceline report`: results of benches become tables, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import InputError
from paceline.result_files import check_folder


@dataclass(frozen=True)
class Arguments:
    """Make tables (Markdown, LaTeX, CSV), figures and one HTML page of what `paceline bench --results` measured.

    Runs of another target, dtype, chat template, thinking mode or grammar are refused: their numbers do not compare.
    """

    results: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILE")] = ()
    """Results files."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder for the report; takes the place of an earlier report there, and touches nothing else."""
    readme: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Make the sections `<!-- results: SUMMARY --> ... <!-- /results -->` of this document anew."""


def run(args: Arguments) -> None:
    """Write the report, then the document that is made from it."""
    if args.out is None and args.readme is None:
        raise InputError("neither --out nor --readme came; say where the report goes, --out FOLDER for one.")
    if bool(args.results) != (args.out is not None):
        raise InputError("results and --out go together: the files to read, and the folder for what is made of them.")
    if args.readme is not None:
        _check(args.readme)
    if args.out is not None:
        _write(args.results, args.out)
    if args.readme is not None:
        _renew(args.readme)


def _write(results: Sequence[Path], out: Path) -> None:
    check_folder(out)
    from paceline.bench.drawing import check_matplotlib
    from paceline.bench.report.gathered import gather
    from paceline.bench.report.write import write_report

    check_matplotlib()
    paths, warnings = write_report(gather(results), out, results)
    for path in paths:
        print(path)
    for warning in warnings:
        print(f"note: {warning}")


def _check(document: Path) -> None:
    from paceline.bench.report.readme import check_sections

    check_sections(_read(document))


def _read(document: Path) -> str:
    try:
        return document.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the document {str(document)!r} is not UTF-8 text; save it as UTF-8.") from error
    except OSError as error:
        raise InputError(f"the document {str(document)!r} cannot be read: {error.strerror or error}.") from error


def _renew(document: Path) -> None:
    """Make the sections of results anew; nothing else changes."""
    from paceline.bench.report.readme import with_results
    from paceline.result_files import write_text

    text = _read(document)
    renewed = with_results(text, document.absolute().parent)
    if renewed != text:
        write_text(document.resolve(), renewed)
    print(f"{document}: {'made anew' if renewed != text else 'as it was'}")
