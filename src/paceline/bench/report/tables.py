"""The papers' table, method by prompt set, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence

from paceline.bench.measurement import Request
from paceline.bench.report.cells import ALL, Cell, as_row
from paceline.bench.results import MethodFacts

CONVENTION = "speed-up over plain decoding (median of answers, paired) / tau (tokens per round, bonus included)"
Grid = tuple[list[str], list[list[str]]]
"""Heads of the columns, and rows of cells."""


def titles(cells: Sequence[Cell]) -> dict[Request, str]:
    """What each kind of request is called: its temperature, and what else differs among them."""
    kinds = list(dict.fromkeys(cell.request for cell in cells))
    names = sorted({name for kind in kinds for name, _ in kind})
    differing = [name for name in names if len({dict(kind).get(name) for kind in kinds}) > 1 and name != "temperature"]
    return {kind: _title(dict(kind), differing) for kind in kinds}


def _title(asked: Mapping[str, float], differing: Sequence[str]) -> str:
    others = "".join(f", {name} = {asked[name]:g}" for name in differing if name in asked)
    return f"T = {asked.get('temperature', 0.0):g}{others}"


def by_set(cells: Sequence[Cell]) -> Grid:
    """A row a method, two columns a set: speed-up and tau. All cells are of one kind of request."""
    sets = list(dict.fromkeys(cell.set_name for cell in cells))
    if len(sets) == 2 and ALL in sets:  # one set is all prompts
        sets.remove(ALL)
    found = {(cell.method, cell.set_name): cell for cell in cells}
    methods = list(dict.fromkeys(cell.method for cell in cells))
    rows = [[method, *(text for name in sets for text in _pair(found.get((method, name))))] for method in methods]
    return ["method", *(f"{name}, {kind}" for name in sets for kind in ("speed-up", "tau"))], rows


def _pair(cell: Cell | None) -> tuple[str, str]:
    if cell is None:
        return "", ""
    speedup = "" if cell.speedup is None else f"{cell.speedup:.2f}x"
    return speedup, "" if cell.tau is None else f"{cell.tau:.2f}"


def overall(cells: Sequence[Cell]) -> Grid:
    """A row a method on all prompts: everything that is known of it. All cells are of one kind of request."""
    columns: dict[str, Callable[[Cell], str]] = {
        "method": lambda cell: cell.method,
        "tokens/s": lambda cell: f"{cell.tokens_per_s:.1f}",
        "speed-up": lambda cell: "" if cell.speedup is None else f"{cell.speedup:.2f}x",
        "95% interval": _interval,
        "tau": lambda cell: "" if cell.tau is None else f"{cell.tau:.2f}",
        "nodes a round": lambda cell: "" if cell.nodes_per_round is None else f"{cell.nodes_per_round:.1f}",
        "drafting": lambda cell: "" if cell.draft_share is None else f"{100 * cell.draft_share:.0f}%",
        "same text": _same_text,
        "cut at the limit": lambda cell: f"{100 * cell.hit_limit:.0f}%",
        "repeated 4-grams": lambda cell: f"{100 * cell.repetition_rate:.0f}%",
    }
    if any(cell.judged for cell in cells):
        columns["right"] = lambda cell: f"{cell.right}/{cell.judged}" if cell.judged else ""
    of_all = [cell for cell in cells if cell.set_name == ALL]
    return list(columns), [[say(cell) for say in columns.values()] for cell in of_all]


def _interval(cell: Cell) -> str:
    return "" if cell.speedup_low is None else f"{cell.speedup_low:.2f}-{cell.speedup_high:.2f}"


def _same_text(cell: Cell) -> str:
    if cell.same_text is None:
        return ""
    ties = f"; {cell.near_ties} part at a near-tie" if cell.near_ties else ""
    return f"{cell.same_text}/{cell.answers}{ties}"


def drafting(methods: Sequence[MethodFacts]) -> Grid:
    """How each method drafts: all that its settings say."""
    names = list(dict.fromkeys(name for m in methods for name in m.settings))
    return ["method", *names], [[m.name, *(str(m.settings.get(name, "")) for name in names)] for m in methods]


def markdown(grid: Grid) -> str:
    """A table of GitHub's kind."""
    head, rows = grid
    lines = [head, ["---"] * len(head), *([_code(row[0]), *row[1:]] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _code(text: str) -> str:
    return f"`{text}`"


def latex(grid: Grid, caption: str) -> str:
    """A table for booktabs, ready for `\\input`."""
    head, rows = grid
    body = [" & ".join(map(_escaped, line)) + r" \\" for line in (head, *rows)]
    columns = "l" + "r" * (len(head) - 1)
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_escaped(caption)}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {body[0]}",
            r"    \midrule",
            *(f"    {line}" for line in body[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def comma_separated(cells: Sequence[Cell]) -> str:
    """Every cell with its intervals and counts, a line each."""
    rows = [as_row(cell) for cell in cells]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
