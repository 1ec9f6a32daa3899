"""The report: tables in three formats, figures, the page, and a summary that the README can be made from."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.bench.measurement import Measurement
from paceline.bench.method import HF, PLAIN
from paceline.bench.pooled import rate
from paceline.bench.report.cells import Cell, as_row, cells
from paceline.bench.report.conditions import OF_ALL, OF_SETS, conditions
from paceline.bench.report.disturbed import disturbed
from paceline.bench.report.figures import write_figures
from paceline.bench.report.formats import comma_separated, latex, markdown
from paceline.bench.report.frame import Frame, frames
from paceline.bench.report.gathered import Gathered
from paceline.bench.report.page import Part, page
from paceline.bench.report.tables import Grid, by_set, drafting, overall, titles
from paceline.bench.summary import slower_than_hugging_face
from paceline.errors import InputError
from paceline.result_files import write_json, write_text

SUMMARY = "summary.json"
_FILE_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
_TABLES: Mapping[str, tuple[str, str, Callable[[Sequence[Cell]], Grid]]] = MappingProxyType(
    {"by_set": ("Speed-up and tau by prompt set", OF_SETS, by_set), "overall": ("All prompts", OF_ALL, overall)}
)
"""Heading, what the columns are, and the table, by the name of its files."""


def write_report(gathered: Gathered, folder: Path, sources: Sequence[Path] = ()) -> tuple[list[Path], list[str]]:
    """Write everything into the folder, in place of an earlier report; the paths of what was written, and what a reader
    must be warned of.

    `results.csv` has every cell with its interval. For each kind of request there is `by_set` and `overall` as Markdown
    and LaTeX, and the figures as PNG and SVG; names end in what was asked where there are several kinds. `index.html`
    has it all in one file. `sources` are the files that it is made of.

    Raises:
        InputError: a file of a report's name is there that no report wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as fresh:
        paths, warnings = _write(gathered, Path(fresh))
        earlier = _earlier(folder)
        _check_ours(folder, [path.name for path in paths], earlier, sources)
        written = [path.replace(folder / path.name) for path in paths]
        for name in earlier - {path.name for path in paths}:
            (folder / name).unlink(missing_ok=True)
        return written, warnings


def _earlier(folder: Path) -> set[str]:
    """Files that an earlier report wrote here, by its summary."""
    try:
        names = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["written"]
        return {name for name in names if _FILE_NAME.fullmatch(name)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _check_ours(folder: Path, names: Sequence[str], earlier: set[str], sources: Sequence[Path]) -> None:
    read = {path.resolve() for path in sources}
    for name in sorted({*names, *earlier}):
        if (folder / name).resolve() in read:
            raise InputError(f"{str(folder / name)!r} is read and would be written; give --out another folder.")
        if not os.path.lexists(folder / name):
            continue
        if name not in earlier or (folder / name).is_symlink() or not (folder / name).is_file():
            raise InputError(
                f"{str(folder / name)!r} is there, and no report of this version wrote it; give --out another folder."
            )


def _write(gathered: Gathered, folder: Path) -> tuple[list[Path], list[str]]:
    found = cells(gathered)
    named = titles(found)
    warnings = [*gathered.warnings, *disturbed(gathered), *_slower(gathered), *_otherwise_right(gathered, found)]
    csv = comma_separated(found, gathered.methods, gathered.provenance[0])
    paths = [_kept(folder / "results.csv", csv)]
    parts = []
    for frame in frames(gathered, named):
        own = [cell for cell in found if named[cell.request] == frame.title]
        part, written = _part(
            frame, own, gathered, f"_{_slug(frame.title)}" if len(named) > 1 else "", folder, warnings
        )
        parts.append(part)
        paths += written
    about = Part("The methods", "", {"": drafting(gathered.methods)}, {})
    paths.append(_kept(folder / "index.html", page([*parts, about], gathered.provenance, warnings)))
    paths.insert(0, folder / SUMMARY)  # in its place before the others, it knows whose they are
    write_json(folder / SUMMARY, _summary(gathered, found, warnings, [path.name for path in paths]))
    return paths, warnings


def _part(
    frame: Frame, own: Sequence[Cell], gathered: Gathered, suffix: str, folder: Path, warnings: Sequence[str]
) -> tuple[Part, list[Path]]:
    """What was measured with one kind of request, for the page and in files."""
    limits = [frame.asked["max_tokens"]] if "max_tokens" in frame.asked else []
    said = conditions([gathered.provenance[run] for run in frame.runs], frame.answers, limits)
    tables, paths = {}, []
    for name, (heading, columns, make) in _TABLES.items():
        grid = tables[heading] = make(own) if not warnings else make(own).unmarked()
        notes = "".join(f"\n{warning}\n" for warning in warnings)
        text = f"{heading}, {frame.title}. {said} {columns}\n\n{markdown(grid)}{notes}"
        paths.append(_kept(folder / f"{name}{suffix}.md", text))
        comments = "".join(f"% note: {warning}\n" for warning in warnings)
        table = latex(grid, f"{heading}, {frame.title}. {said} {columns}", f"{name}{suffix}")
        paths.append(_kept(folder / f"{name}{suffix}.tex", comments + table))
    drawn = write_figures(frame, suffix, folder)
    svg = {path.stem: path.read_text("utf-8") for path in drawn if path.suffix == ".svg"}
    return Part(frame.title, f"{said} {OF_ALL}", tables, svg), paths + drawn


def _slug(title: str) -> str:
    """`T = 0.7, top_k = 20` as a file's name has it: `T0_7_top_k20`."""
    return title.replace(" = ", "").replace(", ", "_").replace(".", "_")


def _kept(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _summary(gathered: Gathered, found: list[Cell], warnings: list[str], written: list[str]) -> dict[str, Any]:
    return {
        "files": list(gathered.files),
        "written": written,
        "answers": len({(x.place, x.request) for _, x in gathered.measurements}),
        "provenance": [dict(facts) for facts in gathered.provenance],
        "methods": [vars(m) for m in gathered.methods],
        "warnings": warnings,
        "cells": [as_row(cell) for cell in found],
    }


def _slower(gathered: Gathered) -> list[str]:
    """Where plain decoding is slower than Hugging Face's, for each run and kind of request."""
    groups: dict[tuple[object, ...], dict[str, list[Measurement]]] = {}
    for run, x in gathered.measurements:
        if x.method in (PLAIN, HF):
            groups.setdefault((run, x.request), {}).setdefault(x.method, []).append(x)
    rows = [[{"method": name, "tokens_per_s": rate(done)} for name, done in group.items()] for group in groups.values()]
    return list(dict.fromkeys(warning for group in rows if (warning := slower_than_hugging_face(group))))


def _otherwise_right(gathered: Gathered, found: list[Cell]) -> list[str]:
    """In float32 drafted answers are plain decoding's, and as often right."""
    if gathered.provenance[0].get("dtype") != "float32":
        return []
    of_all = [cell for cell in found if cell.set_name is None and cell.judged and cell.same_text is not None]
    plain = {cell.request: cell for cell in of_all if cell.method == PLAIN}
    return [
        f"{cell.method} is right {cell.right} times of {cell.judged} and plain decoding {base.right} of {base.judged}, "
        "but in float32 they must agree: please report it."
        for cell in of_all
        if (base := plain.get(cell.request)) is not None
        and cell.method != HF
        and cell.judged == base.judged
        and cell.right != base.right
    ]
