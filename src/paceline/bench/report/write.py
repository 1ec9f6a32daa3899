"""The report: tables in three formats, figures, the page, and a summary that the README can be made from."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from paceline.bench.measurement import Measurement
from paceline.bench.method import HF, PLAIN
from paceline.bench.pooled import rate
from paceline.bench.report.cells import ALL, Cell, as_row, cells
from paceline.bench.report.figures import FIGURES, write_figures
from paceline.bench.report.frame import frames
from paceline.bench.report.gathered import Gathered
from paceline.bench.report.page import Part, page
from paceline.bench.report.tables import CONVENTION, by_set, comma_separated, drafting, latex, markdown, overall, titles
from paceline.bench.summary import slower_than_hugging_face
from paceline.records import write_text
from paceline.result_files import write_json

SUMMARY = "summary.json"


def write_report(gathered: Gathered, folder: Path) -> tuple[list[Path], list[str]]:
    """Write everything into the folder, in place of an earlier report; the paths of what was written, and what a reader
    must be warned of.

    `results.csv` has every cell with its interval. For each kind of request there is `by_set` and `overall` as Markdown
    and LaTeX, and the figures as PNG and SVG; names end in a number where there are several kinds. `index.html` has it
    all in one file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as fresh:
        paths, warnings = _write(gathered, Path(fresh))
        _clear(folder)
        return [path.replace(folder / path.name) for path in paths], warnings


def _write(gathered: Gathered, folder: Path) -> tuple[list[Path], list[str]]:
    found = cells(gathered)
    named = titles(found)
    warnings = [*gathered.warnings, *_slower(gathered), *_otherwise_right(gathered, found)]
    paths = [_kept(folder / "results.csv", comma_separated(found))]
    parts = []
    for number, frame in enumerate(frames(gathered, named), start=1):
        suffix = f"_{number}" if len(named) > 1 else ""
        own = [cell for cell in found if named[cell.request] == frame.title]
        tables = {"By prompt set": by_set(own), "All prompts": overall(own)}
        for name, grid in zip(("by_set", "overall"), tables.values(), strict=True):
            caption = CONVENTION if name == "by_set" else "All prompts"
            paths.append(_kept(folder / f"{name}{suffix}.md", markdown(grid)))
            paths.append(_kept(folder / f"{name}{suffix}.tex", latex(grid, f"{frame.title}; {caption}")))
        drawn = write_figures(frame, suffix, folder)
        svg = {path.stem: path.read_text("utf-8") for path in drawn if path.suffix == ".svg"}
        parts.append(Part(frame.title, tables, svg))
        paths += drawn
    write_json(folder / SUMMARY, _summary(gathered, found, warnings))
    about = Part("The methods", {"": drafting(gathered.methods)}, {})
    last = _kept(folder / "index.html", page([*parts, about], gathered.provenance, warnings))
    return [*paths, folder / SUMMARY, last], warnings


def _clear(folder: Path) -> None:
    """Remove what an earlier report wrote, which may have had other parts."""
    names = "|".join(["by_set", "overall", *FIGURES])
    written = re.compile(rf"((?:{names})(?:_\d+)?\.(?:md|tex|png|svg)|results\.csv|summary\.json|index\.html)")
    for path in folder.iterdir():
        if written.fullmatch(path.name):
            path.unlink()


def _kept(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _summary(gathered: Gathered, found: list[Cell], warnings: list[str]) -> dict[str, Any]:
    return {
        "files": list(gathered.files),
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
    of_all = [cell for cell in found if cell.set_name == ALL and cell.judged and cell.same_text is not None]
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
