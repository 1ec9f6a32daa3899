"""Learning while serving: every finished query is kept, and after it a bandit decides whether to learn.

    rounds --Recorder--> conversations --StreamBuffer--> learn? (Bandit) --> steps on a copy --> better on those kept
                                                                              apart? --yes--> the serving network is
                                                                              exchanged; worse? --> the copy goes back

Verification computes the target's distribution at every accepted node and at the first rejected one; with the features
that the drafter read, that is what it is trained on; it costs no pass of either model, only to be kept.

The network that serves is exchanged as a whole, by one assignment between two rounds, in the thread that serves: no
round sees half of an update, and texts in flight go on with the caches they have, whose worth is speed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.acceptance import Accepted
from paceline.adaptation.bandit import Arm, Bandit
from paceline.adaptation.buffer import StreamBuffer
from paceline.adaptation.drift import DriftDetector, NoveltyDetector
from paceline.adaptation.learner import HEADS, WHOLE, Learner, Outcome, Update
from paceline.adaptation.settings import AdaptationSettings
from paceline.adaptation.task import AdaptationTask
from paceline.decode import RoundObserver
from paceline.errors import CheckpointError
from paceline.learning.recorder import Recorder
from paceline.policies.base import Plan
from paceline.sequence import ActiveSequence
from paceline.target.base import Pass

_KEPT_AT_DRIFT = 4
_RECORDED_AHEAD = 6
"""Queries before the bandit's next draw from which on the stream is kept."""


class Adapter(RoundObserver):
    """A round observer that keeps what the stream shows, and exchanges the drafter's network where that pays.

    `plan` is how much is drafted where updates are measured: what the stream's policy fixes, or the drafter's own
    sizes where it fixes nothing.
    """

    def __init__(self, task: AdaptationTask, settings: AdaptationSettings | None = None, plan: Plan | None = None):
        self.task, self.settings = task, settings or AdaptationSettings()
        self.feature_layers = tuple(task.serving.feature_layers)
        self.updates: list[Update] = []
        ready_at = 1 if self.settings.forced else self.settings.min_conversations
        self.buffer = StreamBuffer(self.settings.buffer_tokens, ready_at)
        self.bandit = Bandit(
            [Arm(HEADS, 0.1, 0.1, 3.0), Arm(WHOLE, 0.4, 0.2, 5.0)], self.settings.max_loss, self.settings.seed
        )
        own = Plan(task.serving.default_block_size, task.serving.default_tree_budget)
        self.learner = Learner(task, self.settings, plan or own)
        self._recorder = Recorder(self.feature_layers, self.settings.max_length)
        self._drift, self._novelty = DriftDetector(), NoveltyDetector()
        self._pool = ThreadPoolExecutor(1) if self.settings.background else None
        self._running: tuple[Future[Outcome], int] | None = None
        self._queries, self._since_drift, self._drifts, self._due = 0, 0, 0, 0
        self._served, self._counted, self._round_began = 0.0, 0.0, perf_counter()

    def on_prefill(self, sequence: ActiveSequence, result: Pass) -> None:
        assert result.features is not None, "nothing is tapped"
        if _is_typical(sequence) and self._novelty.saw(result.features[0]):
            self._changed()
        if _is_typical(sequence) and len(sequence.tokens) <= self.settings.max_length and self._records:
            self._recorder.watch(sequence)
            self._recorder.on_prefill(sequence, result)
        self._round_began = perf_counter()

    def on_round(self, sequences: Sequence[ActiveSequence], result: Pass, accepted: Accepted) -> None:
        self._recorder.on_round(sequences, result, accepted)
        now = perf_counter()
        if any(sequence.settings.draft for sequence in sequences):
            self._served += now - self._round_began
        self._round_began = now

    def on_finish(self, sequence: ActiveSequence) -> None:
        """A query is answered, or was given up."""
        statistics = sequence.statistics
        if not sequence.settings.draft or not statistics.rounds:
            self._recorder.forget(sequence)
            return
        if self._recorder.watches(sequence):
            tokens = sequence.tokens[: statistics.prompt_tokens + statistics.tokens]
            self.buffer.add(self._recorder.take(sequence, tokens, statistics.prompt_tokens))
        self.bandit.served(self._served - self._counted)
        self._counted = self._served
        self._queries, self._since_drift, self._due = self._queries + 1, self._since_drift + 1, self._due + 1
        if _is_typical(sequence) and self._drift.saw(math.log(statistics.acceptance_length)):
            self._changed()

    def _changed(self) -> None:
        """What was learned of the stream says nothing any more of what comes."""
        self.buffer.forget(_KEPT_AT_DRIFT if self._records else 0)
        self.bandit.drifted()
        self._since_drift, self._drifts = 0, self._drifts + 1

    def between_rounds(self) -> None:
        """Learn if that pays, or take over what was learned meanwhile."""
        if self._running is not None:
            if self._running[0].done():
                self._take_over()
        elif self._due and self.buffer.is_ready:
            queries, self._due = self._due, 0
            self._consider(queries)
        self._round_began = perf_counter()

    def save(self, path: str | Path) -> None:
        """Write the adapted drafter, once what is being learned is done.

        Raises:
            CheckpointError: `path` is where the drafter came from, which stays as it is, or holds something else.
        """
        path = Path(path)
        if path.absolute().resolve() == self.task.checkpoint.absolute().resolve():
            raise CheckpointError(f"{path} is the drafter that was adapted, which is kept; choose another place.")
        self._take_over()
        kept = [update for update in self.updates if update.kept]
        about: dict[str, Any] = {"queries": self._queries, "updates_kept": len(kept)}
        if kept:
            about["last_measured"] = {"before": kept[-1].before, "after": kept[-1].after}
        self.task.save(path, about)

    def close(self) -> None:
        """Take over what is being learned, and learn no more."""
        self._take_over()
        self.buffer.close()
        if self._pool is not None:
            self._pool.shutdown()

    @property
    def _records(self) -> bool:
        """Whether the bandit will soon ask for what is served now; to keep it costs time in every round."""
        return self.bandit.rest <= _RECORDED_AHEAD

    def _consider(self, queries: int) -> None:
        arm = WHOLE if self.settings.forced else self._chosen(queries)
        if arm is None:
            return
        shown = list(self.buffer.training), list(self.buffer.apart)  # the buffer goes on while a thread learns
        if self._pool is not None:
            self._running = self._pool.submit(self.learner.update, arm, *shown, self._queries), self._drifts
            return
        began = perf_counter()
        try:
            outcome = self.learner.update(arm, *shown, self._queries)
        except BaseException:  # Ctrl-C: the seconds are lost all the same
            self.bandit.wasted(perf_counter() - began)
            raise
        self._finish(outcome)

    def _chosen(self, queries: int) -> str | None:
        recurring = 0.0 if self.bandit.rest else self.buffer.recurring()
        return self.bandit.choose(self._served, self._horizon(), queries, recurring)

    def _take_over(self) -> None:
        """Wait for what is being learned, if anything is, and use it unless the stream has changed since."""
        if self._running is None:
            return
        (running, drifts), self._running = self._running, None
        outcome = running.result()
        if drifts == self._drifts:
            self._finish(outcome)
            return
        self.learner.restore(outcome.update.arm, outcome.earlier)
        self.bandit.wasted(outcome.update.seconds)

    def _finish(self, outcome: Outcome) -> None:
        update = outcome.update
        if outcome.network is None:
            if outcome.goes_back:
                self.learner.restore(update.arm, outcome.earlier)
        else:
            self.task.serving.network = outcome.network
            self.learner.accept()
            self._drift.reset()  # what the update changes is no change of the stream
        self.bandit.saw(update.arm, update.gain, update.noise, update.seconds, update.total)
        self.updates.append(update)

    def _horizon(self) -> float:
        """Seconds of drafted rounds still expected."""
        expected = self.settings.expected_queries
        left = self._since_drift if expected is None else max(0, expected - self._queries)
        return left * self._served / max(1, self._queries)


def _is_typical(sequence: ActiveSequence) -> bool:
    """Whether a query shows the target's own distribution: what its settings change of it is nothing to learn."""
    return sequence.settings.draft and not sequence.settings.edits_logits
