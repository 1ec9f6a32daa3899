"""One update of a drafter: steps on a copy, measured before and after on conversations that it does not learn from."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor, nn

from paceline.adaptation.settings import AdaptationSettings
from paceline.adaptation.task import AdaptationTask
from paceline.errors import TrainingDivergedError
from paceline.learning.conversation import Conversation
from paceline.models.draft_network import DraftNetwork
from paceline.policies.base import Plan
from paceline.replay import DraftingMethod, ReplayedAcceptance

HEADS, WHOLE = "heads", "whole"
_CLIP = 1.0
_SCATTER = 0.1
"""Variance of the logarithm of a measured gain, times the rounds that it was measured on: what chance decides."""


@dataclass(frozen=True)
class Update:
    """What an update did: tokens a round, on the conversations kept apart, before and after it and of the drafter that
    came, measured on `rounds`, and the seconds of all of it. `kept` says whether it serves now: one that gains no more
    than chance shows does not, and one that loses is rolled back. `query` is how many queries had been answered when it
    began."""

    arm: str
    before: float
    after: float
    original: float
    rounds: int
    seconds: float
    kept: bool
    query: int = 0

    @property
    def gain(self) -> float:
        """Logarithm of the speed-up: rounds take as long as they did, and give more tokens."""
        return math.log(self.after / self.before)

    @property
    def total(self) -> float:
        """The same of what serves now over the drafter that came."""
        return math.log((self.after if self.kept else self.before) / self.original)

    @property
    def noise(self) -> float:
        """Standard deviation of a gain as measured."""
        return math.sqrt(_SCATTER / max(1, self.rounds))


@dataclass(frozen=True)
class Outcome:
    """An update with the network that it made, ready to serve (None: it is not worth it), the weights of before, and
    whether the learning network should go back to them."""

    update: Update
    network: DraftNetwork | None
    earlier: Mapping[str, Tensor]
    goes_back: bool = False


class Learner:
    """Makes updates on the task's learning network; `plan` is how much is drafted where they are measured."""

    def __init__(self, task: AdaptationTask, settings: AdaptationSettings, plan: Plan):
        self.task, self.settings, self.plan = task, settings, plan
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._random = random.Random(settings.seed)
        self._original = self._serving = _weights(task)

    def update(
        self, arm: str, training: Sequence[Conversation], apart: Sequence[Conversation], query: int = 0
    ) -> Outcome:
        """Learn, and measure it. An error is a warning and an update that brought nothing; on Ctrl-C the learning
        network is as it was."""
        started = perf_counter()
        earlier = _weights(self.task)
        original, rounds, before, after, network, failed = 1.0, 0, 1.0, 1.0, None, False
        try:
            before, rounds = self.measure(self.task.serving_copy(self._serving), apart)
            is_first = self._serving is self._original
            original = before if is_first else self.measure(self.task.serving_copy(self._original), apart)[0]
            self.learn(arm, training)
            network = self.task.serving_copy()
            after, _ = self.measure(network, apart)
        except Exception as error:
            after, network, failed = before, None, True
            warnings.warn(f"the drafter could not learn ({error!r}), and stays as it was.", stacklevel=2)
        except BaseException:
            self.restore(arm, earlier)
            raise
        update = Update(arm, before, after, original, rounds, perf_counter() - started, network is not None, query)
        if update.gain <= update.noise and not self.settings.forced:
            update, network = replace(update, kept=False), None
        return Outcome(update, network, earlier, goes_back=failed or update.gain < 0)

    def accept(self) -> None:
        """What the learning network holds serves from now on."""
        self._serving = _weights(self.task)

    def restore(self, arm: str, earlier: Mapping[str, Tensor]) -> None:
        """Take the learning network back to the weights of before an update."""
        self.task.network.load_state_dict(earlier)
        self._optimizers.pop(arm, None)

    def learn(self, arm: str, training: Sequence[Conversation]) -> None:
        """The steps of an arm on the learning network."""
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

    def measure(self, network: DraftNetwork, apart: Sequence[Conversation]) -> tuple[float, int]:
        """Tokens a round of a network on conversations, and the rounds."""
        method = DraftingMethod("", self.task.drafter, self.plan.block_size, self.plan.tree_budget)
        accepted, rounds = ReplayedAcceptance(apart, [method]).counts(network, method)
        return 1.0 + accepted / max(1, rounds), rounds


def _weights(task: AdaptationTask) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in task.network.state_dict().items()}
