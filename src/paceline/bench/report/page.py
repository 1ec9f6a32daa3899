"""A page with everything, in one file that opens without a network."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from paceline.bench.report.tables import Grid

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1a1a1a; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #444; white-space: normal; vertical-align: bottom; }
tbody tr:nth-child(even) { background: #f3f3f3; }
.facts th { font-weight: normal; color: #555; } .facts td { text-align: left; white-space: normal; }
.warning { border-left: 4px solid #8a3b12; padding: .2rem .8rem; background: #fbf1ea; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
"""


@dataclass(frozen=True)
class Part:
    """What was measured with one kind of request, in which `conditions`: titled tables, and figures as SVG by name."""

    title: str
    conditions: str
    tables: Mapping[str, Grid]
    figures: Mapping[str, str]


def page(parts: Sequence[Part], provenance: Sequence[Mapping[str, Any]], warnings: Sequence[str]) -> str:
    """The HTML document."""
    first = provenance[0]
    title = f"{html.escape(str(first.get('target')))}, {html.escape(str(first.get('dtype')))}"
    body = [f"<h1>paceline: {title}</h1>"]
    body += [f'<p class="warning">{html.escape(warning)}</p>' for warning in warnings]
    for part in parts:
        body.append(f"<h2>{html.escape(part.title)}</h2>")
        body += [f"<p>{html.escape(part.conditions)}</p>"] if part.conditions else []
        for name, grid in part.tables.items():
            body += [f"<h3>{html.escape(name)}</h3>"] if name else []
            body.append(_table(grid))
        body += [f"<figure>{_inline(svg)}</figure>" for svg in part.figures.values()]
    body.append("<h2>Where the figures come from</h2>")
    body += [_facts(facts) for facts in provenance]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>paceline: {title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _table(grid: Grid) -> str:
    above = "".join(
        f'<th colspan="{len(list(below))}">{html.escape(text)}</th>'
        for text, below in groupby(above for above, _ in grid.heads)
    )
    groups = f"<tr>{above}</tr>" if any(above for above, _ in grid.heads) else ""
    heads = "".join(f"<th>{html.escape(head)}</th>" for _, head in grid.heads)
    lines = "".join(f"<tr>{''.join(_cells(grid, number))}</tr>" for number in range(len(grid.rows)))
    return f'<div class="wide"><table><thead>{groups}<tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def _cells(grid: Grid, number: int) -> Iterator[str]:
    for at, text in enumerate(grid.rows[number]):
        shown = html.escape(text)
        yield f"<td><b>{shown}</b></td>" if (number, at) in grid.best else f"<td>{shown}</td>"


def _facts(facts: Mapping[str, Any]) -> str:
    lines = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(_said(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f'<table class="facts"><tbody>{lines}</tbody></table>'


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _inline(svg: str) -> str:
    """An SVG file without what stands before its element."""
    return svg[svg.index("<svg") :]
