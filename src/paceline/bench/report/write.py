"""The report: tables in three formats, figures, the page, and a summary that the README can be made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.method import PLAIN
from paceline.bench.report.cells import ALL, Cell, as_row, cells
from paceline.bench.report.figures import write_figures
from paceline.bench.report.frame import frames
from paceline.bench.report.gathered import Gathered
from paceline.bench.report.page import Part, page
from paceline.bench.report.tables import CONVENTION, by_set, comma_separated, latex, markdown, overall, titles
from paceline.bench.summary import slower_than_hugging_face
from paceline.records import write_text
from paceline.result_files import write_json

SUMMARY = "summary.json"


def write_report(gathered: Gathered, folder: Path) -> list[Path]:
    """Write everything into the folder; the paths of what was written.

    `results.csv` has every cell with its interval. For each kind of request there is `by_set` and `overall` as Markdown
    and LaTeX, and the figures as PNG and SVG; names end in a number where there are several kinds. `index.html` has it
    all in one file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = cells(gathered)
    named = titles(found)
    warnings = [*gathered.warnings, *_slower(found), *_otherwise_right(gathered, found)]
    paths = [_kept(folder / "results.csv", comma_separated(found))]
    parts = []
    for number, frame in enumerate(frames(gathered, named), start=1):
        suffix = f"_{number}" if len(named) > 1 else ""
        own = [cell for cell in found if named[tuple(sorted(cell.asked.items()))] == frame.title]
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
    return [*paths, folder / SUMMARY, _kept(folder / "index.html", page(parts, gathered.provenance, warnings))]


def _kept(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def _summary(gathered: Gathered, found: list[Cell], warnings: list[str]) -> dict[str, Any]:
    return {
        "files": list(gathered.files),
        "provenance": [dict(facts) for facts in gathered.provenance],
        "methods": [{"name": m.name, "settings": dict(m.settings)} for m in gathered.methods],
        "warnings": warnings,
        "cells": [as_row(cell) for cell in found],
    }


def _slower(found: list[Cell]) -> list[str]:
    """Said once, of the first kind of request in which it is so."""
    rows = [{"method": cell.method, "tokens_per_s": cell.tokens_per_s} for cell in found if cell.set_name == ALL]
    warning = slower_than_hugging_face(rows)
    return [warning] if warning else []


def _otherwise_right(gathered: Gathered, found: list[Cell]) -> list[str]:
    """In float32 drafted answers are plain decoding's, and as often right."""
    if gathered.provenance[0].get("dtype") != "float32":
        return []
    of_all = [cell for cell in found if cell.set_name == ALL and cell.judged and cell.same_text is not None]
    plain = {tuple(cell.asked.items()): cell for cell in of_all if cell.method == PLAIN}
    return [
        f"{cell.method} is right {cell.right} times of {cell.judged} and plain decoding {base.right} of {base.judged}, "
        "but in float32 they must agree: please report it."
        for cell in of_all
        if (base := plain.get(tuple(cell.asked.items()))) is not None
        and cell.judged == base.judged
        and cell.right != base.right
    ]
