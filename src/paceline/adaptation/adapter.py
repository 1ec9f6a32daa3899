"""Learning while serving: every finished query is kept, and after it a bandit decides whether to learn.

    rounds --Recorder--> conversations --StreamBuffer--> learn? (Bandit) --> steps on a copy --> better on those kept
                                                                              apart? --yes--> the serving network is
                                                                              exchanged; --no--> the copy goes back

Verification computes the target's distribution at every accepted node and at the first rejected one; with the features
that the drafter read, that is what it is trained on; it costs no pass of either model, only to be kept.

The network that serves is exchanged as a whole, by one assignment between two rounds, in the thread that serves: no
round sees half of an update, and texts in flight go on with the caches they have, whose worth is speed alone.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

from paceline.acceptance import Accepted
from paceline.adaptation.bandit import Arm, Bandit
from paceline.adaptation.buffer import StreamBuffer
from paceline.adaptation.drift import DriftDetector
from paceline.adaptation.settings import AdaptationSettings
from paceline.adaptation.task import AdaptationTask
from paceline.decode import RoundObserver
from paceline.errors import CheckpointError, TrainingDivergedError
from paceline.learning.conversation import Conversation
from paceline.learning.recorder import Recorder
from paceline.models.draft_network import DraftNetwork
from paceline.replay import DraftingMethod, ReplayedAcceptance
from paceline.sequence import ActiveSequence
from paceline.target.base import Pass

HEADS, WHOLE = "heads", "whole"
_CLIP = 1.0
_KEPT_AT_DRIFT = 4
_RECORDED_AHEAD = 12
"""Queries before the bandit's next draw from which on the stream is kept."""


@dataclass(frozen=True)
class Update:
    """One update: tokens a round on the conversations kept apart before and after it, and the seconds of all of it.

    `network` is what to serve from now on; None: it did not pay and was rolled back. `query` is how many had been
    answered when it began.
    """

    arm: str
    before: float
    after: float
    seconds: float
    network: DraftNetwork | None
    query: int = 0

    @property
    def gain(self) -> float:
        """Logarithm of the speed-up: rounds take as long as they did, and give more tokens."""
        return math.log(self.after / self.before)


class Adapter(RoundObserver):
    """A round observer that keeps what the stream shows, and exchanges the drafter's network where that pays."""

    def __init__(self, task: AdaptationTask, settings: AdaptationSettings | None = None):
        self.task, self.settings = task, settings or AdaptationSettings()
        self.feature_layers = tuple(task.serving.feature_layers)
        self.updates: list[Update] = []
        self.buffer = StreamBuffer(self.settings.buffer_tokens)
        self.bandit = Bandit(
            [Arm(HEADS, 0.02, 0.05, 2.0), Arm(WHOLE, 0.05, 0.1, 3.0)], self.settings.max_loss, self.settings.seed
        )
        self._recorder = Recorder(self.feature_layers)
        self._drift = DriftDetector()
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._random = random.Random(self.settings.seed)
        self._pool = ThreadPoolExecutor(1) if self.settings.background else None
        self._running: Future[Update] | None = None
        self._queries, self._since_drift, self._is_due = 0, 0, False
        self._served, self._counted, self._step_began = 0.0, 0.0, perf_counter()

    def on_prefill(self, sequence: ActiveSequence, result: Pass) -> None:
        # what the request's own settings change of the distribution is nothing to learn
        settings = sequence.settings
        fits = len(sequence.tokens) <= self.settings.max_length
        if settings.draft and fits and not settings.edits_logits and self._records:
            self._recorder.watch(sequence)
            self._recorder.on_prefill(sequence, result)

    def on_round(self, sequences: Sequence[ActiveSequence], result: Pass, accepted: Accepted) -> None:
        self._recorder.on_round(sequences, result, accepted)
        now = perf_counter()
        self._served += now - self._step_began
        self._step_began = now

    def on_finish(self, sequence: ActiveSequence) -> None:
        """A query is answered, or was given up."""
        statistics = sequence.statistics
        if not sequence.settings.draft or not statistics.rounds:
            self._recorder.forget(sequence)
            return
        if self._recorder.watches(sequence):
            tokens = sequence.tokens[: statistics.prompt_tokens + statistics.tokens]
            conversation = self._recorder.take(sequence, tokens, statistics.prompt_tokens)
            self.buffer.add(conversation.cut(self.settings.max_length))
        self.bandit.served(self._served - self._counted)
        self._counted = self._served
        self._queries, self._since_drift, self._is_due = self._queries + 1, self._since_drift + 1, True
        if self._drift.saw(math.log(statistics.acceptance_length)):
            self.buffer.forget(_KEPT_AT_DRIFT if self._records else 0)
            self.bandit.drifted()
            self._since_drift = 0

    @property
    def _records(self) -> bool:
        """Whether the bandit will soon ask for what is served now; to keep it costs time in every round."""
        return self.bandit.rest <= _RECORDED_AHEAD

    def between_rounds(self) -> None:
        """Learn if that pays, or take over what was learned meanwhile."""
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            self._finish(running.result())
        elif self._running is None and self._is_due and self.buffer.is_ready:
            self._is_due = False
            self._consider()
        self._step_began = perf_counter()

    def _consider(self) -> None:
        arm = self.bandit.choose(self._served, self._horizon())
        if arm is None:
            return
        shown = list(self.buffer.training), list(self.buffer.apart)  # the buffer goes on while a thread learns
        if self._pool is not None:
            self._running = self._pool.submit(self._update, arm, *shown)
        else:
            self._finish(self._update(arm, *shown))

    def save(self, path: Path) -> None:
        """Write the adapted drafter, once what is being learned is done.

        Raises:
            CheckpointError: `path` is where the drafter came from, which stays as it is.
        """
        if path.absolute().resolve() == self.task.checkpoint.absolute().resolve():
            raise CheckpointError(f"{path} is the drafter that was adapted, which is kept; choose another place.")
        if self._running is not None:
            running, self._running = self._running, None
            self._finish(running.result())
        self.task.save(path)

    def close(self) -> None:
        """Wait for the thread that learns, if there is one."""
        if self._pool is not None:
            self._pool.shutdown()

    def _horizon(self) -> float:
        """Seconds of serving still expected."""
        expected = self.settings.expected_queries
        left = self._since_drift if expected is None else max(0, expected - self._queries)
        return left * self._served / max(1, self._queries)

    def _update(self, arm: str, training: Sequence[Conversation], apart: Sequence[Conversation]) -> Update:
        """Learn on the copy, and measure it; where it is no better, the copy goes back."""
        started, query = perf_counter(), self._queries
        before = after = 1.0
        kept = {name: weight.clone() for name, weight in self.task.network.state_dict().items()}
        network: DraftNetwork | None = None
        try:
            before = self._measure(apart)
            self._learn(arm, training)
            after = self._measure(apart)
            network = self.task.serving_copy() if after > before else None
        except Exception as error:  # what serves goes on; the bandit books an update that brought nothing
            after = before
            warnings.warn(f"the drafter could not learn ({error!r}), and stays as it was.", stacklevel=2)
        finally:  # Ctrl-C too: what was not measured is not kept
            if network is None:
                self.task.network.load_state_dict(kept)
                self._optimizers.pop(arm, None)
        return Update(arm, before, after, perf_counter() - started, network, query)

    def _finish(self, update: Update) -> None:
        if update.network is not None:
            self.task.serving.network = update.network
            self._drift.reset()  # what the update changes is no change of the stream
        self.bandit.saw(update.arm, update.gain, update.seconds, update.network is not None)
        self.updates.append(update)

    def _learn(self, arm: str, training: Sequence[Conversation]) -> None:
        network, settings = self.task.network, self.settings
        of_arm = [p for n, p in network.named_parameters() if n.startswith(self.task.heads) or arm == WHOLE]
        learning = [p for p in of_arm if p is not network.embed_tokens.weight]
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
        if arm not in self._optimizers:
            self._optimizers[arm] = torch.optim.AdamW(learning, lr=settings.learning_rate)
        network.train()
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(settings.head_steps if arm == HEADS else settings.whole_steps):
                self._step(self._optimizers[arm], learning, training)
        network.zero_grad()
        network.eval()

    def _step(
        self, optimizer: torch.optim.Optimizer, learning: list[nn.Parameter], training: Sequence[Conversation]
    ) -> None:
        settings = self.settings
        chosen = self._random.sample(training, min(settings.batch_size, len(training)))
        generator = torch.Generator().manual_seed(self._random.getrandbits(62))
        optimizer.zero_grad()
        loss = self.task.loss(chosen, settings.num_anchors, generator)
        if not bool(loss.isfinite()):
            raise TrainingDivergedError(f"the loss is {float(loss.detach())}")
        loss.backward()
        nn.utils.clip_grad_norm_(learning, _CLIP)
        optimizer.step()

    def _measure(self, apart: Sequence[Conversation]) -> float:
        """Tokens a round of the learning network, on conversations that it does not learn from."""
        serving = self.task.serving
        method = DraftingMethod("", self.task.drafter, serving.default_block_size, serving.default_tree_budget)
        return ReplayedAcceptance(apart, [method])(self.task.network.eval())[""]
