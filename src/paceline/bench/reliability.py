"""Whether the chances that nodes are given are the shares of them that are accepted.

Every node of every tree is given three chances before its round is verified: the drafter's own, the calibrated one, and
the calibrated one of a request as hard as this one seems to be. Nodes are then sorted into bins by each of them: of the
nodes in a bin, as many should be accepted as their chances say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from paceline.policies.base import Policy, PromptView, RoundView
from paceline.policies.calibration import Calibration, Steps
from paceline.policies.difficulty import Difficulty
from paceline.policies.observed import ObservedPolicy

KINDS = ("drafter", "calibrated", "posterior")
_EDGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0 + 1e-9])
_LEAST = 1e-4


class WatchedPolicy(ObservedPolicy):
    """A fixed policy's plans, and what the nodes of every round were expected to do and did; the state of a sequence is
    its difficulty."""

    def __init__(self, inner: Policy):
        super().__init__(inner)
        self.calibration = Calibration()
        self.rounds = 0
        self._chances: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
        self._accepted: list[np.ndarray] = []

    def begin(self, prompt: PromptView) -> Difficulty:
        return Difficulty()

    def learn(self, outcome: RoundView) -> None:
        for draft, path in zip(outcome.drafts, outcome.paths, strict=True):
            if not draft.tree.num_nodes:
                continue
            difficulty: Difficulty = draft.sequence.state
            steps = Steps.of(draft.tree)
            corrected = self.calibration.corrected(steps)
            found = (steps.along_paths(), corrected.along_paths(), difficulty.along_paths(corrected))
            for kind, chances in zip(KINDS, found, strict=True):
                self._chances[kind].append(np.array(chances))
            self._accepted.append(np.isin(np.arange(1, draft.tree.num_nodes + 1), path))
            self.rounds += 1
            difficulty.saw(corrected.taken(path))
            self.calibration.learn(steps.taken(path))

    def chances(self, kind: str) -> Float64[np.ndarray, " n"]:
        """Of every node that was verified."""
        return np.concatenate(self._chances[kind]) if self.rounds else np.zeros(0)

    def accepted(self) -> Bool[np.ndarray, " n"]:
        """Which of those nodes were accepted."""
        return np.concatenate(self._accepted) if self.rounds else np.zeros(0, bool)


@dataclass(frozen=True)
class Bin:
    """Nodes whose chance lies between two bounds: how many, the mean of their chances, and the share accepted."""

    low: float
    high: float
    nodes: int
    said: float
    accepted: float


def bins(chances: Float64[np.ndarray, " n"], accepted: Bool[np.ndarray, " n"]) -> list[Bin]:
    """The bins that hold any nodes, from the least chance to the highest."""
    index = np.digitize(chances, _EDGES) - 1
    found = []
    for i in range(len(_EDGES) - 1):
        inside = index == i
        if inside.any():
            said, kept = float(chances[inside].mean()), float(accepted[inside].mean())
            found.append(Bin(float(_EDGES[i]), float(min(1.0, _EDGES[i + 1])), int(inside.sum()), said, kept))
    return found


def summary(watched: WatchedPolicy) -> list[dict[str, Any]]:
    """For each kind of chance: drafted tokens a round is expected to keep and kept, mean log loss of a node (less is
    better), and the bins."""
    accepted = watched.accepted()
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        chances = watched.chances(kind)
        bounded = chances.clip(_LEAST, 1.0 - _LEAST)
        log_loss = -np.where(accepted, np.log(bounded), np.log(1.0 - bounded)).mean() if len(chances) else 0.0
        rounds = max(1, watched.rounds)
        rows.append(
            {
                "chances": kind,
                "rounds": watched.rounds,
                "nodes": len(chances),
                "expected": float(chances.sum()) / rounds,
                "kept": float(accepted.sum()) / rounds,
                "log_loss": float(log_loss),
                "bins": [vars(one) for one in bins(chances, accepted)],
            }
        )
    return rows


def write_figure(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """`reliability` as PNG and SVG: the share accepted against the chance, one panel for each kind."""
    from paceline.bench.drawing import axes, save

    figure, panels = axes(len(rows))
    for panel, row in zip(panels, rows, strict=True):
        said = [one["said"] for one in row["bins"]]
        kept = [one["accepted"] for one in row["bins"]]
        panel.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--")
        panel.plot(said, kept, color="black", marker="o", markersize=4)
        panel.set(title=f"{row['chances']}, log loss {row['log_loss']:.4f}", xlabel="chance of a node", xlim=(0, 1))
        panel.set_ylim(0, 1)
    panels[0].set_ylabel("share of such nodes accepted")
    return save(figure, "reliability", folder)
