"""The results section of a document, made from the summary of a report.

The text between `<!-- results: PATH -->` and `<!-- /results -->` is replaced; PATH is that of the summary, seen from
the document's folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.bench.report.cells import Cell
from paceline.bench.report.conditions import OF_ALL, conditions
from paceline.bench.report.formats import markdown
from paceline.bench.report.tables import Grid, by_set, overall, titles
from paceline.errors import CheckpointError, InputError

_BEGINNING = re.compile(r"<!--\s*results\b")
_SECTION = re.compile(r"(<!-- results: (\S+) -->\r?\n)(?:(?!<!--).)*(<!-- /results -->)", re.DOTALL)


def check_sections(document: str) -> None:
    """Raises InputError for a document without a section, or with one that is not closed."""
    begun, whole = len(_BEGINNING.findall(document)), len(_SECTION.findall(document))
    if not whole or begun != whole:
        raise InputError(
            f"results begin {begun} times in the document, but {whole} sections are whole; write the lines "
            "'<!-- results: PATH -->' (a path without spaces) and, after it, '<!-- /results -->' for each."
        )


def with_results(document: str, folder: Path) -> str:
    """The document with every section of results made anew; `folder` is where it lies.

    Raises:
        InputError: it has no such section, or one that is not closed.
        CheckpointError: a summary that is missing or of another form.
    """
    check_sections(document)
    return _SECTION.sub(
        lambda found: f"{found[1]}{_with_ends(section(folder / found[2]), found[1])}{found[3]}", document
    )


def _with_ends(text: str, line: str) -> str:
    """With the ends of lines that this line has."""
    return text.replace("\n", "\r\n") if line.endswith("\r\n") else text


def section(path: Path) -> str:
    """Tables of a summary, and a sentence that says where they come from.

    Raises:
        CheckpointError: the file is missing or of another form.
    """
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        cells = [_cell(row) for row in summary["cells"]]
        limits = [cell.asked["max_tokens"] for cell in cells if "max_tokens" in cell.asked]
        parts = [f"{conditions(summary['provenance'], int(summary['answers']), limits)} {OF_ALL}"]
        is_fair = not summary["warnings"]
        for asked, title in titles(cells).items():
            own = [cell for cell in cells if cell.request == asked]
            parts += [f"{title}, all prompts:", _table(overall(own), is_fair)]
            if len({cell.set_name for cell in own}) > 2:
                sets = by_set([cell for cell in own if cell.set_name is not None])
                parts += ["By prompt set:", _table(sets, is_fair)]
        parts += summary["warnings"]
    except OSError as error:
        raise CheckpointError(f"the summary {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is no summary of a report ({error!r}); make it anew.") from error
    return "\n\n".join(parts) + "\n"


def _table(grid: Grid, is_fair: bool) -> str:
    return markdown(grid if is_fair else grid.unmarked()).rstrip()


def _cell(row: Mapping[str, Any]) -> Cell:
    """`as_row` spreads what was asked among the rest."""
    own = {name: row[name] for name in Cell.__dataclass_fields__ if name != "asked"}
    return Cell(asked={name: float(value) for name, value in row.items() if name not in own}, **own)
