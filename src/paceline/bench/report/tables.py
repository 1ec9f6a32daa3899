"""The papers' tables: method by prompt set, and all that is known of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.bench.measurement import Request
from paceline.bench.method import PLAIN
from paceline.bench.report.cells import FEW, Cell
from paceline.bench.results import MethodFacts
from paceline.bench.wording import shown

_MANY = 10
"""Answers from which on the best on a prompt set is marked."""
ALL = "all prompts"
"""What stands over the columns of all sets together."""


@dataclass(frozen=True)
class Grid:
    """Heads of the columns, each with that of the columns it stands below ("" for none), and rows of cells; `best` are
    the (row, column) of a column's largest number."""

    heads: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()

    @property
    def columns(self) -> list[str]:
        """Each column's head in one line."""
        return [f"{above}, {head}" if above else head for above, head in self.heads]

    def unmarked(self) -> Grid:
        """Without a best of any column, where there is something to warn of."""
        return replace(self, best=frozenset())


def titles(cells: Sequence[Cell]) -> dict[Request, str]:
    """What each kind of request is called: its temperature, and what else differs among them."""
    kinds = list(dict.fromkeys(cell.request for cell in cells))
    names = sorted({name for kind in kinds for name, _ in kind})
    differing = [name for name in names if len({dict(kind).get(name) for kind in kinds}) > 1 and name != "temperature"]
    return {kind: _title(dict(kind), differing) for kind in kinds}


def _title(asked: Mapping[str, float], differing: Sequence[str]) -> str:
    others = "".join(f", {name} = {shown(asked[name])}" for name in differing if name in asked)
    return f"T = {shown(asked.get('temperature', 0.0))}{others}"


def by_set(cells: Sequence[Cell]) -> Grid:
    """A row a method, two columns a set: speed-up and tau. All cells are of one kind of request."""
    sets = list(dict.fromkeys(cell.set_name for cell in cells))
    if len(sets) == 2 and None in sets:  # one set is all prompts
        sets.remove(None)
    found = {(cell.method, cell.set_name): cell for cell in cells}
    methods = list(dict.fromkeys(cell.method for cell in cells))
    rows = [[method, *(text for name in sets for text in _pair(found.get((method, name))))] for method in methods]
    heads = [(name or ALL, kind) for name in sets for kind in ("speed-up", "tau")]
    many = [name for name in sets if all(cell.answers >= _MANY for cell in cells if cell.set_name == name)]
    columns = [1 + 2 * sets.index(name) + kind for name in many for kind in (0, 1)]
    return Grid([("", "method"), *heads], rows, _best(rows, columns))


def _pair(cell: Cell | None) -> tuple[str, str]:
    return ("", "") if cell is None else (_speedup(cell), _tau(cell))


def overall(cells: Sequence[Cell]) -> Grid:
    """A row a method on all prompts: everything that is known of it. All cells are of one kind of request."""
    columns: dict[str, Callable[[Cell], str]] = {
        "method": lambda cell: cell.method,
        "tokens/s": lambda cell: f"{cell.tokens_per_s:.1f}",
        "speed-up": _speedup,
        "95% interval": _interval,
        "tau": _tau,
        "nodes a round": lambda cell: "" if cell.nodes_per_round is None else f"{cell.nodes_per_round:.1f}",
        "drafting": lambda cell: "" if cell.draft_share is None else f"{100 * cell.draft_share:.0f}%",
        "same text": _same_text,
        "cut at the limit": lambda cell: f"{100 * cell.hit_limit:.0f}%",
        "repeated 4-grams": lambda cell: f"{100 * cell.repetition_rate:.0f}%",
    }
    if len({cell.answers for cell in cells if cell.set_name is None}) > 1:
        columns["answers"] = lambda cell: str(cell.answers)
    if any(cell.judged for cell in cells):
        columns["right"] = lambda cell: f"{cell.right}/{cell.judged}" if cell.judged else ""
    rows = [[say(cell) for say in columns.values()] for cell in cells if cell.set_name is None]
    heads = list(columns)
    return Grid([("", head) for head in heads], rows, _best(rows, map(heads.index, ("tokens/s", "speed-up", "tau"))))


def _speedup(cell: Cell) -> str:
    return "" if cell.speedup is None else f"{cell.speedup:.2f}x"


def _tau(cell: Cell) -> str:
    return "" if cell.tau is None else f"{cell.tau:.2f}"


def _interval(cell: Cell) -> str:
    """Of a few pairs, or of plain decoding over itself, nothing can be said."""
    if cell.speedup_low is None or cell.pairs < FEW or cell.method == PLAIN:
        return ""
    return f"{cell.speedup_low:.2f}-{cell.speedup_high:.2f}"


def _same_text(cell: Cell) -> str:
    if cell.same_text is None:
        return ""
    ties = f"; {cell.near_ties} part at a near-tie" if cell.near_ties else ""
    return f"{cell.same_text}/{cell.pairs}{ties}"


def _best(rows: Sequence[Sequence[str]], columns: Iterable[int]) -> frozenset[tuple[int, int]]:
    """Where these columns have their largest number, as it is shown; nowhere where all are the same."""
    found: set[tuple[int, int]] = set()
    for column in columns:
        numbers = {number: float(row[column].rstrip("x")) for number, row in enumerate(rows) if row[column]}
        if len(set(numbers.values())) > 1:
            largest = max(numbers.values())
            found |= {(number, column) for number, value in numbers.items() if value == largest}
    return frozenset(found)


def drafting(methods: Sequence[MethodFacts]) -> Grid:
    """How each method drafts: all that its settings say."""
    names = list(dict.fromkeys(name for m in methods for name in m.settings))
    rows = [[m.name, *(str(m.settings.get(name, "")) for name in names)] for m in methods]
    return Grid([("", "method"), *(("", name) for name in names)], rows)
