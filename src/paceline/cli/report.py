"""`paceline report`: results of benches become tables, figures and a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import InputError
from paceline.result_files import check_folder


@dataclass(frozen=True)
class Arguments:
    """Make tables (Markdown, LaTeX, CSV), figures and one HTML page of what `paceline bench --results` measured.

    Runs of another target, dtype or chat template are refused: their numbers do not compare.
    """

    results: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Results files."""
    out: Path | None = None
    """Folder for the report; what is there is replaced."""
    readme: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Make the sections `<!-- results: SUMMARY --> ... <!-- /results -->` of this document anew."""


def run(args: Arguments) -> None:
    """Write the report, then the document that is made from it."""
    if args.out is None and args.readme is None:
        raise InputError("neither --out nor --readme came; say where the report goes, --out FOLDER for one.")
    if bool(args.results) != (args.out is not None):
        raise InputError("results and --out go together: the files to read, and the folder for what is made of them.")
    if args.out is not None:
        check_folder(args.out)
        from paceline.bench.drawing import check_matplotlib
        from paceline.bench.report.gathered import gather
        from paceline.bench.report.write import write_report

        check_matplotlib()
        paths, warnings = write_report(gather(args.results), args.out)
        for path in paths:
            print(path)
        for warning in warnings:
            print(f"note: {warning}")
    if args.readme is not None:
        _renew(args.readme)


def _renew(document: Path) -> None:
    from paceline.bench.report.readme import with_results
    from paceline.records import write_text

    try:
        text = document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the document {str(document)!r} cannot be read: {error}.") from error
    renewed = with_results(text, document.absolute().parent)
    if renewed != text:
        write_text(document, renewed)
    print(f"{document}: {'made anew' if renewed != text else 'as it was'}")
