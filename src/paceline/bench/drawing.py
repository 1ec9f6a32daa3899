"""What all figures share: matplotlib, where it is installed, panels, and marks that differ in grey too."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from paceline.errors import InputError

#: Colours from dark to light, so that prints in grey tell neighbours apart; markers do the rest.
COLOURS = (
    "#1b1b3a", "#7b2d26", "#2a6f97", "#b5651d", "#5a9367", "#c08497", "#8ab6d6", "#d4b483", "#4d4d4d", "#8e44ad",
    "#b3a100", "#a9a9a9",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
DASHES: tuple[Any, ...] = ("solid", "dashed", "dotted", "dashdot", (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1)))
HATCHES = ("", "///", "", "xx", "", "\\\\", "")


def marks(number: int) -> dict[str, Any]:
    """Colour and marker of the line of this number; the dash changes when they begin again."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[(number // len(COLOURS)) % len(DASHES)],
    }


def save(figure: Any, name: str, folder: Path) -> list[Path]:
    """One figure as PNG and as SVG, the same bytes each time."""
    from matplotlib import rc_context

    paths = []
    for kind in ("png", "svg"):
        path = folder / f"{name}.{kind}"
        temporary = path.with_name(f".{path.name}.tmp")
        with rc_context({"svg.hashsalt": name}):
            figure.savefig(temporary, dpi=150, format=kind, metadata={"Date": None} if kind == "svg" else None)
        temporary.replace(path)
        paths.append(path)
    return paths


def check_matplotlib() -> None:
    """Say before the work that figures cannot be drawn.

    Raises:
        InputError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("figures need the package matplotlib; pip install 'paceline[bench]'.")


def rows_for(count: int, columns: int = 4) -> int:
    """Rows of panels, so that a page's width has room for those of one."""
    return -(-count // columns)


def axes(count: int, rows: int = 1, height: float = 3.9, width: float = 3.6, **shared: Any) -> tuple[Any, list[Any]]:
    """A figure with that many panels in all; without pyplot, which would keep it. What is over in the last row is
    empty."""
    from matplotlib.figure import Figure

    columns = -(-count // rows)
    figure = Figure(figsize=(1.2 + width * columns, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]
