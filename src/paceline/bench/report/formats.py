"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from paceline.bench.report.cells import Cell, as_row
from paceline.bench.report.tables import Grid
from paceline.bench.results import MethodFacts
from paceline.bench.wording import shown

_NARROW = 8
"""Columns that the width of one column of a paper has room for."""


def markdown(grid: Grid) -> str:
    """A table of GitHub's kind; the best of a column is bold."""
    lines = [[_plain(head) for head in grid.columns], ["---"] * len(grid.heads)]
    for number, row in enumerate(grid.rows):
        cells = [f"**{text}**" if (number, at) in grid.best else _plain(text) for at, text in enumerate(row)]
        lines.append([_code(row[0]), *cells[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _plain(text: str) -> str:
    """Words that are no Markdown and no HTML, in one line."""
    return re.sub(r"([\\|`*<>\[\]])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """As code; a name that holds the marks of code stays words."""
    return _plain(text) if re.search(r"[`|\n]", text) else f"`{text}`"


def latex(grid: Grid, caption: str, label: str) -> str:
    """A table for booktabs, ready for `\\input`; the best of a column is bold. Wide ones are set over both columns, as
    small as these make them."""
    rows = [
        [rf"\textbf{{{_words(text)}}}" if (number, at) in grid.best else _words(text) for at, text in enumerate(row)]
        for number, row in enumerate(grid.rows)
    ]
    wide = len(grid.heads) > _NARROW
    kind = "table*" if wide else "table"
    return "\n".join(
        [
            rf"% needs \usepackage{{booktabs{',graphicx' if wide else ''}}}",
            rf"\begin{{{kind}}}",
            r"  \centering",
            rf"  \caption{{{_words(caption)}}}",
            rf"  \label{{tab:{label}}}",
            *([r"  \resizebox{\textwidth}{!}{%"] if wide else []),
            rf"  \begin{{tabular}}{{l{'r' * (len(grid.heads) - 1)}}}",
            r"    \toprule",
            *_groups(grid),
            f"    {_line([_words(head) for _, head in grid.heads])}",
            r"    \midrule",
            *(f"    {_line(row)}" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}" + ("}" if wide else ""),
            rf"\end{{{kind}}}",
            "",
        ]
    )


def _groups(grid: Grid) -> list[str]:
    """The line of heads over heads, with rules below them."""
    if not any(above for above, _ in grid.heads):
        return []
    heads, rules, at = [], [], 1
    for above, below in groupby(above for above, _ in grid.heads):
        width = len(list(below))
        heads.append(rf"\multicolumn{{{width}}}{{c}}{{{_words(above)}}}" if above else " & " * (width - 1))
        rules += [rf"\cmidrule(lr){{{at}-{at + width - 1}}}"] if above else []
        at += width
    return [f"    {_line(heads)}", f"    {' '.join(rules)}"]


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


_SPECIAL = MappingProxyType(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\char34{}",
        **{c: f"\\{c}" for c in "&%$#_{}"},
    }
)


def _words(text: str) -> str:
    """Any text as LaTeX sets it: names in backticks as code, T and tau as mathematics, dashes between numbers."""
    escaped = "".join(_SPECIAL.get(c, c) for c in text)
    escaped = re.sub(r"`([^`]*)`", r"\\texttt{\1}", escaped)
    escaped = re.sub(r"\bT = ([\d.e+-]*\d)", r"$T = \1$", escaped)
    escaped = re.sub(r"\btau\b", r"$\\tau$", escaped)
    return re.sub(r"(?<=\d\.\d\d)-(?=\d+\.\d\d)", "--", escaped)


_CSV_NAMES = MappingProxyType(
    {
        "draft_share": "drafting_share_of_time",
        "repetition_rate": "repeated_4gram_share",
        "hit_limit": "cut_at_limit_share",
        "same_text": "same_text_answers",
        "near_ties": "near_tie_answers",
        "judged": "judged_answers",
        "right": "right_answers",
    }
)


def comma_separated(cells: Sequence[Cell], methods: Sequence[MethodFacts], facts: Mapping[str, Any]) -> str:
    """Every cell with its intervals and counts, a line each; a line without a set is of all prompts."""
    known = {method.name: method for method in methods}
    rows = [_csv_row(cell, known[cell.method], facts) for cell in cells]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _csv_row(cell: Cell, method: MethodFacts, facts: Mapping[str, Any]) -> dict[str, Any]:
    row = as_row(cell)
    asked = {name: shown(value) for name, value in cell.asked.items()}
    if not cell.judged:
        row["judged"] = row["right"] = None
    said = {
        "target": facts.get("target"),
        "dtype": facts.get("dtype"),
        "method": row.pop("method"),
        "family": method.family,
        "policy": method.policy,
        "tree_budget": method.sizes.get("tree_budget"),
        "block_size": method.sizes.get("block_size"),
    }
    return {**said, **{_CSV_NAMES.get(name, name): value for name, value in {**row, **asked}.items()}}
