"""The measurements of one kind of request, as figures look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.measurement import Measurement, Request
from paceline.bench.method import PLAIN
from paceline.bench.pooled import rate
from paceline.bench.report.cells import Tagged
from paceline.bench.report.gathered import Gathered
from paceline.bench.results import MethodFacts
from paceline.metrics import paired_speedup


@dataclass(frozen=True)
class Frame:
    """Methods that were run, in order, with their measurements by name; `title` says what was asked."""

    title: str
    asked: Mapping[str, float]
    methods: Sequence[MethodFacts]
    measured: Mapping[str, Sequence[Tagged]]

    @property
    def runs(self) -> list[int]:
        """Numbers of the runs that asked this."""
        return sorted({run for done in self.measured.values() for run, _ in done})

    @property
    def answers(self) -> int:
        """Turns of prompts that any method answered."""
        return len({x.place for done in self.measured.values() for _, x in done})

    def done(self, name: str) -> list[Measurement]:
        return [x for _, x in self.measured[name]]

    def rates(self, methods: Sequence[MethodFacts]) -> dict[str, float]:
        """How fast each is: over the same run's plain decoding where all of them have one, else in tokens/s."""
        pairs = {m.name: self.paired(m.name) for m in methods}
        if all(own for _, own in pairs.values()):
            return {name: paired_speedup(*both)[0] for name, both in pairs.items()}
        return {name: rate(self.done(name)) for name in pairs}

    def families(self) -> dict[str, list[MethodFacts]]:
        """Methods that differ in sizes or policy only, by what they have in common."""
        found: dict[str, list[MethodFacts]] = {}
        for method in self.methods:
            found.setdefault(method.family, []).append(method)
        return found

    def best(self) -> dict[str, MethodFacts]:
        """The fastest of each family, of those that draft."""
        drafted = {name: methods for name, methods in self.families().items() if name != PLAIN}
        return {name: self._fastest(methods) for name, methods in drafted.items()}

    def _fastest(self, methods: Sequence[MethodFacts]) -> MethodFacts:
        rates = self.rates(methods)
        return max(methods, key=lambda m: rates[m.name])

    def paired(self, name: str) -> tuple[list[float], list[float]]:
        """Seconds per token of plain decoding and of a method, on the answers that both gave in the same run."""
        plain = {(run, x.place): x.seconds_per_token for run, x in self.measured.get(PLAIN, ())}
        pairs = [
            (plain[run, x.place], x.seconds_per_token) for run, x in self.measured[name] if (run, x.place) in plain
        ]
        return [base for base, _ in pairs], [own for _, own in pairs]


def frames(gathered: Gathered, titles: Mapping[Request, str]) -> list[Frame]:
    """One for each kind of request; `titles` are by what was asked."""
    found = []
    for asked, title in titles.items():
        measured: dict[str, list[Tagged]] = {}
        for run, x in gathered.measurements:
            if x.request == asked:
                measured.setdefault(x.method, []).append((run, x))
        found.append(Frame(title, dict(asked), [m for m in gathered.methods if m.name in measured], measured))
    return found
