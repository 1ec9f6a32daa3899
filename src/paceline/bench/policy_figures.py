"""Figures of a policy report: which size is best how often, and what the size does to every prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.acceptance_tables import AcceptanceTable
from paceline.bench.drawing import axes, rows_for, save
from paceline.bench.policy_report import histogram
from paceline.bench.wording import counted

UNITS = {"tau": "tokens per round (tau)", "tokens_per_s": "tokens/s"}


def write_figures(tables: list[AcceptanceTable], judge: str, folder: Path) -> list[Path]:
    """`best_size` and `by_block_size`, each as PNG and SVG."""
    figures = {"best_size": _best_sizes(tables, judge), "by_block_size": by_size(tables, judge)}
    return [path for name, figure in figures.items() for path in save(figure, f"{name}_{judge}", folder)]


def _best_sizes(tables: list[AcceptanceTable], judge: str) -> Any:
    figure, panels = axes(len(tables))
    for panel, table in zip(panels, tables, strict=True):
        counts = histogram(table, judge)
        bars = panel.bar([str(size) for size in counts], list(counts.values()), color="0.45")
        panel.bar_label(bars)
        panel.set(title=f"{table.name}, {counted(len(table), 'prompt')}", xlabel="best block size", ylabel="prompts")
        panel.margins(y=0.12)
    return figure


def by_size(tables: list[AcceptanceTable], judge: str) -> Any:
    """A panel a table: every prompt's line, its best size or sizes marked, and the mean."""
    figure, panels = axes(len(tables), rows_for(len(tables)), height=3.1, width=2.7, sharey=True)
    for panel, table in zip(panels, tables, strict=True):
        values, sizes = table.values(judge), list(table.block_sizes)
        lines = panel.plot(sizes, values.T, color="0.75", linewidth=0.8, zorder=1)
        lines[0].set_label("a prompt")
        rows, best = np.nonzero(values == values.max(1, keepdims=True))
        panel.scatter(
            np.array(sizes)[best], values[rows, best], s=14, color="0.35", zorder=2, label="its best (oracle), ties too"
        )
        panel.tick_params(labelleft=True)
        panel.plot(sizes, values.mean(0), color="black", linewidth=2, marker="s", zorder=3, label="mean of all prompts")
        panel.set_title(f"{table.name}, {counted(len(table), 'prompt')}", fontsize=9)
        panel.set(xlabel="block size (anchor included)", ylabel=UNITS[judge])
        panel.set_xticks(sizes)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
