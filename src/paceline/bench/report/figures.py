"""The papers' figures. Each is a function of a frame that draws, or says None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from paceline.bench.acceptance_tables import AcceptanceTable
from paceline.bench.drawing import HATCHES, axes, marks, rows_for, save
from paceline.bench.method import PLAIN
from paceline.bench.policy_figures import by_size
from paceline.bench.pooled import reached, stage_ms, tau
from paceline.bench.report.cells import FEW
from paceline.bench.report.frame import Frame
from paceline.bench.report.regret import plan_regrets
from paceline.bench.results import MethodFacts
from paceline.bench.sweep import BLOCK_SIZE, TREE_BUDGET
from paceline.metrics import STAGES, paired_speedup

_LEAST_SHARE = 0.002
"""Rounds that are rarer do not stretch an axis."""


def by_budget(frame: Frame) -> Any | None:
    """Speed-up and tau by the nodes of the tree (DDTree, figure 3): a column a method, a line a block size."""
    lines = _budget_lines(frame)
    if not lines:
        return None
    rows = ["speed-up over plain\n(median, 95% interval)", "tau\n(tokens per round)"][PLAIN not in frame.measured :]
    names = list(dict.fromkeys(name for name, _ in lines))
    sizes = sorted({size for _, size in lines})
    budgets = sorted({m.settings[TREE_BUDGET] for methods in lines.values() for m in methods})
    figure, panels = axes(len(rows) * len(names), rows=len(rows), height=2.5, width=2.2, sharex=True, sharey="row")
    at = {(row, name): panels[i * len(names) + j] for i, row in enumerate(rows) for j, name in enumerate(names)}
    for (name, size), methods in lines.items():
        number = sizes.index(size)
        style = {"label": f"block size {size}", **marks(number), "markersize": 5}
        x = [m.settings[TREE_BUDGET] * 2.0 ** (0.06 * (number - (len(sizes) - 1) / 2)) for m in methods]
        at[rows[-1], name].plot(x, [tau(frame.done(m.name)) for m in methods], **style)
        if len(rows) > 1 and all(frame.paired(m.name)[1] for m in methods):
            speed = np.array([paired_speedup(*frame.paired(m.name)) for m in methods])
            few = min(len(frame.paired(m.name)[1]) for m in methods) < FEW
            spread = None if few else np.abs(speed[:, 1:].T - speed[:, :1].T)
            at[rows[0], name].errorbar(x, speed[:, 0], yerr=spread, capsize=2, elinewidth=0.7, **style)
            at[rows[0], name].axhline(1.0, color="0.5", linewidth=0.8)
    for (row, name), panel in at.items():
        panel.set_xscale("log", base=2)
        panel.set_xticks(budgets, [str(budget) for budget in budgets])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        if row == rows[0]:
            panel.set_title(name, fontsize=10)
        if name == names[0]:
            panel.set_ylabel(row)
        if row == rows[-1]:
            panel.set_xlabel("nodes of the draft tree")
    _legend(figure, panels, len(sizes))
    return _titled(figure, "By tree budget", frame)


def _budget_lines(frame: Frame) -> dict[tuple[str, int], list[MethodFacts]]:
    """Methods of one family and block size at two budgets or more, budgets ascending."""
    lines: dict[tuple[str, int], list[MethodFacts]] = {}
    for name, methods in frame.families().items():
        for m in methods:
            if TREE_BUDGET in m.sizes:
                lines.setdefault((name, int(m.settings.get(BLOCK_SIZE, 0))), []).append(m)
    several = {key: sorted(methods, key=lambda m: m.settings[TREE_BUDGET]) for key, methods in lines.items()}
    return {key: methods for key, methods in several.items() if len(methods) > 1}


def accepted_lengths(frame: Frame) -> Any | None:
    """How many drafted tokens the rounds accept (DDTree, figure 4): a panel a method, at its fastest size."""
    shares = [(m, _histogram(frame, m)) for m in frame.best().values() if reached(frame.done(m.name))]
    if not shares:
        return None
    figure, panels = _grid(len(shares), sharex=True, sharey=True)
    most = max(max(np.flatnonzero(share > _LEAST_SHARE)) for _, share in shares)
    for panel, (method, share) in zip(panels, shares, strict=True):
        panel.bar(np.arange(len(share))[: most + 1], 100 * share[: most + 1], color="0.55", edgecolor="0.2")
        panel.set_title(f"{_shown(method)}\ntau {tau(frame.done(method.name)):.2f}", fontsize=9)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.tick_params(labelbottom=True)
    figure.supxlabel("drafted tokens accepted in a round (bonus excluded)")
    figure.supylabel("share of rounds, %")
    return _titled(figure, "Accepted lengths", frame)


def _histogram(frame: Frame, method: MethodFacts) -> np.ndarray:
    """Share of rounds that accept 0, 1, 2, ... drafted tokens."""
    at_least = np.array([1.0, *reached(frame.done(method.name)), 0.0])
    return at_least[:-1] - at_least[1:]


def by_block_size(frame: Frame) -> Any | None:
    """Tau of every prompt at every block size, its best one marked (BlockPilot), at the budget that is fastest."""
    tables = [table for name, methods in frame.families().items() if (table := _sizes_table(frame, name, methods))]
    if not tables:
        return None
    return _titled(by_size(tables, "tau"), "By block size", frame)


def _sizes_table(frame: Frame, name: str, methods: list[MethodFacts]) -> AcceptanceTable | None:
    swept = [m for m in methods if BLOCK_SIZE in m.sizes]
    by_budget: dict[int, list[MethodFacts]] = {}
    for m in swept:
        by_budget.setdefault(m.sizes.get(TREE_BUDGET, 0), []).append(m)
    several = {budget: own for budget, own in by_budget.items() if len(own) > 1}
    if not several:
        return None
    rates = frame.rates([m for own in several.values() for m in own])
    own = max(several.values(), key=lambda group: max(rates[m.name] for m in group))
    own = sorted(own, key=lambda m: m.settings[BLOCK_SIZE])
    columns = [{x.place: tau([x]) for x in frame.done(m.name)} for m in own]
    places = [place for place in columns[0] if all(column.get(place) for column in columns)]
    values = np.array([[column[place] for column in columns] for place in places], dtype=np.float64)
    if not len(values):
        return None
    sizes = tuple(int(m.settings[BLOCK_SIZE]) for m in own)
    budget = own[0].settings.get(TREE_BUDGET)
    title = f"{name}, {budget} nodes" if TREE_BUDGET in own[0].sizes else name
    return AcceptanceTable(title, sizes, values, None, {})


def stage_times(frame: Frame) -> Any | None:
    """Where a round's time goes: a bar a method, at its fastest size."""
    spent = {_shown(m): stage_ms(frame.done(m.name)) for m in (*_plain(frame), *frame.best().values())}
    spent = {name: stages for name, stages in spent.items() if stages}
    if not spent:
        return None
    figure, (panel,) = axes(1, height=1.6 + 0.42 * len(spent), width=6.8)
    names = list(spent)[::-1]
    left = np.zeros(len(names))
    stages_there = [stage for stage in STAGES if any(stage in stages for stages in spent.values())]
    for number, stage in enumerate(stages_there):
        ms = np.array([spent[name].get(stage, 0.0) for name in names])
        grey = str(0.2 + 0.55 * number / max(len(stages_there) - 1, 1))
        panel.barh(
            names, ms, left=left, label=stage, color=grey, edgecolor="white",
            hatch=HATCHES[number % len(HATCHES)], hatch_linewidth=0.4, linewidth=0.5,
        )  # fmt: skip
        left += ms
    for place, total in enumerate(left):
        panel.annotate(
            f"{total:.1f}", (total, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    panel.set_xlabel("ms a round")
    panel.margins(x=0.1)
    figure.legend(loc="outside lower center", ncols=len(stages_there), fontsize=8)
    return _titled(figure, "Stage times", frame)


def _plain(frame: Frame) -> list[MethodFacts]:
    return [m for m in frame.methods if m.name == PLAIN]


def by_position(frame: Frame) -> Any | None:
    """Share of rounds whose accepted path reaches each position of a block, at the fastest size of a method."""
    found = [(m, shares) for m in frame.best().values() if (shares := reached(frame.done(m.name)))]
    if not found:
        return None
    figure, (panel,) = axes(1, height=4.4, width=6.2)
    furthest = max(sum(share > _LEAST_SHARE for share in shares) for _, shares in found)
    for number, (m, shares) in enumerate(found):
        depth = max(len(shares), int(m.settings.get(BLOCK_SIZE, 0)) - 1)
        shown = [100 * share for share in (*shares, *[0.0] * depth)][: min(depth, furthest)]
        panel.plot(range(1, len(shown) + 1), shown, label=_shown(m, ", "), markersize=5, **marks(number))
    panel.set(xlabel="position after the last token", ylabel="rounds that accept this far, %")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return _titled(figure, "Acceptance by position", frame)


def regret(frame: Frame) -> Any | None:
    """What every plan and policy of a method loses to the oracle that knew each prompt's fastest fixed plan."""
    found = {name: plan_regrets(frame, methods) for name, methods in frame.families().items()}
    found = {name: rows for name, rows in found.items() if rows}
    if not found:
        return None
    longest = max(map(len, found.values()))
    rows_of_panels = rows_for(len(found), columns=3)
    figure, panels = axes(len(found), rows_of_panels, height=1.2 + 0.22 * longest, width=3.4, sharex=True)
    for panel, (name, rows) in zip(panels, found.items(), strict=True):
        labels = [row.label for row in rows][::-1]
        values = np.array([[row.loss, row.low, row.high] for row in rows][::-1]) * 100
        spread = np.clip(np.stack([values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]]), 0.0, None)
        greys = ["0.75" if row.is_fixed else "0.35" for row in rows][::-1]
        panel.barh(labels, values[:, 0], xerr=spread, capsize=2, color=greys, edgecolor="0.2", linewidth=0.5)
        panel.set(title=name, ylim=(len(rows) - longest - 0.6, len(rows) - 0.4))
        panel.tick_params(axis="y", labelsize=8)
        panel.tick_params(labelbottom=True)
    some = any(not row.is_fixed for rows in found.values() for row in rows)
    policies = " (light: fixed; dark: policies)" if some else ""
    panels[0].set_xlim(0.0, 105 * max(row.high for rows in found.values() for row in rows) or 1.0)
    figure.supxlabel("tokens/s lost to the oracle, %")
    return _titled(figure, f"Regret of plans, 95% interval{policies}", frame)


FIGURES: Mapping[str, Callable[[Frame], Any | None]] = MappingProxyType(
    {
        "by_budget": by_budget,
        "by_block_size": by_block_size,
        "accepted_lengths": accepted_lengths,
        "by_position": by_position,
        "stage_times": stage_times,
        "regret": regret,
    }
)


def write_figures(frame: Frame, suffix: str, folder: Path) -> list[Path]:
    """Every figure that there is something to draw for, as PNG and SVG; the paths of both."""
    drawn = {name: draw(frame) for name, draw in FIGURES.items()}
    return [
        path for name, figure in drawn.items() if figure is not None for path in save(figure, name + suffix, folder)
    ]


def _grid(count: int, **shared: Any) -> tuple[Any, list[Any]]:
    return axes(count, rows_for(count), height=2.6, width=2.4, **shared)


def _titled(figure: Any, title: str, frame: Frame) -> Any:
    figure.suptitle(f"{title}, {frame.title}", fontsize=11)
    return figure


def _shown(method: MethodFacts, between: str = "\n") -> str:
    """A method's name with its plan, if it was asked for one, after it."""
    return between.join([method.family, method.plan] if method.plan else [method.family])


def _legend(figure: Any, panels: list[Any], columns: int) -> None:
    """One entry for each line's name, whichever panels have it."""
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=9)
