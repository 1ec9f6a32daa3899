"""The training run: step, log, measure, keep. Killed at any moment, the same call goes on from the last checkpoint.

Everything random is a function of (seed, step), and the learning rate of the step, so that a resumed run repeats
an uninterrupted one loss by loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from paceline.checkpoints.target_weights import TargetWeights
from paceline.errors import InputError, TrainingDivergedError
from paceline.learning.conversation import Conversation
from paceline.learning.losses import BlockLoss
from paceline.loading import set_threads
from paceline.models.draft_network import DraftNetwork
from paceline.records import RECORDING, exclusive, read_json
from paceline.replay import HeldOutAcceptance, ReplayedAcceptance
from paceline.sources import load_tokenizer, target_folder, template_digest, tokenizer_digest
from paceline.train.config import RunConfig, TrainConfig
from paceline.train.data import ConversationDataset, ShuffledOrder, fold_seed, open_dataset, split_by_hash
from paceline.train.display import Display
from paceline.train.eagle3_config import Eagle3TrainConfig
from paceline.train.ema import WeightAverage
from paceline.train.heads_config import HeadsTrainConfig
from paceline.train.journal import Journal, check_shards, settle_settings, write_provenance
from paceline.train.methods.base import TrainingBatch, TrainingMethod
from paceline.train.methods.dflash import DFlashTraining
from paceline.train.methods.eagle3 import Eagle3Training
from paceline.train.methods.heads import HeadsTraining
from paceline.train.methods.specblock import SpecBlockTraining
from paceline.train.optimizer import build_optimizers, rate_factor, set_rate
from paceline.train.specblock_config import SpecBlockTrainConfig
from paceline.train.state import load_latest_state, save_state


def train(config: RunConfig, measure: HeldOutAcceptance | None = None) -> Path:
    """Train, or go on training, a drafter; returns the folder of the best one.

    `measure` takes the place of the replayed held-out conversations. Raises InputError where the settings do not
    fit the data, the target or the run that lies in `config.run`.
    """
    set_threads(config.threads)
    method = method_for(config)
    accelerator = Accelerator(mixed_precision=config.precision)
    target = target_folder(config.target)
    check_recording(config, method.target_layer_ids, target)
    dataset = open_dataset(config.data, settle_settings(config, accelerator.num_processes))
    check_shards(config, dataset)
    weights = TargetWeights(target)
    check_tokens(dataset, weights.config["vocab_size"], target)
    training, held_out = split_by_hash(usable(dataset, config.max_length), config.held_out)
    network, draft_ids = build_drafter(method, weights, training)
    taps, width = method.target_layer_ids, weights.config["hidden_size"]
    if dataset.num_features != len(taps) * width:
        raise InputError(
            f"the shards' features have {dataset.num_features} columns but {len(taps)} tapped layers make "
            f"{len(taps) * width}; name the layers that the shards were recorded with"
        )
    accelerator.wait_for_everyone()
    measure = measure or held_out_acceptance(method, held_out)
    config.run.mkdir(parents=True, exist_ok=True)
    with exclusive(config.run) if accelerator.is_main_process else nullcontext():
        if accelerator.is_main_process:
            write_provenance(config, dataset, accelerator.num_processes)
        return _Run(method, accelerator, network, draft_ids, training, measure).to_the_end()


def method_for(config: RunConfig) -> TrainingMethod:
    """The method that a run's settings are of."""
    match config:
        case TrainConfig():
            return DFlashTraining(config)
        case SpecBlockTrainConfig():
            return SpecBlockTraining(config)
        case HeadsTrainConfig():
            return HeadsTraining(config)
        case Eagle3TrainConfig():
            return Eagle3Training(config)
        case _:
            raise InputError(f"no method trains from {type(config).__name__}.")


def build_drafter(
    method: TrainingMethod, target: TargetWeights, training: ConversationDataset
) -> tuple[DraftNetwork, torch.Tensor]:
    """(network with the target's embedding and head attached, Int64[V] draft id of each target id or -1)."""
    network = method.build(target, training)
    network.attach(target.embedding(), target.head())
    return network.float().train(), network.target_to_draft(torch.arange(network.vocab_size))


def describe_training(config: RunConfig, training: ConversationDataset) -> dict[str, Any]:
    """What is kept in the checkpoint about its making, next to the step and the acceptance."""
    described: dict[str, Any] = {
        "conversations": len(training),
        "response_tokens": training.num_response_tokens(),
        "steps": config.steps,
        "acceptance_convention": "tokens per round, bonus included, held-out responses decoded again",
    }
    return described | tokenizer_facts(target_folder(config.target))


def tokenizer_facts(target: Path) -> dict[str, str]:
    """Digests of a target's tokenizer and of its chat template, where the folder has one."""
    if not (target / "tokenizer_config.json").exists():
        return {}
    tokenizer = load_tokenizer(str(target))
    return {
        "chat_template_sha256": template_digest(tokenizer.chat_template),
        "tokenizer_sha256": tokenizer_digest(tokenizer),
    }


def check_recording(config: RunConfig, asked: tuple[int, ...], target: Path) -> None:
    """Refuse conversations that were recorded at other layers, or under another chat template than the target's."""
    path = config.data / RECORDING
    if not path.exists():
        return
    recorded = read_json(path)
    layers = tuple(recorded["target_layer_ids"])
    if layers != asked:
        raise InputError(
            f"the conversations in {config.data} were recorded at target layers {layers}, but target_layer_ids is "
            f"{asked}; name the layers that they were recorded at."
        )
    template = tokenizer_facts(target).get("chat_template_sha256")
    if template is not None and template != recorded["chat_template_sha256"]:
        raise InputError(
            f"the conversations in {config.data} were recorded under another chat template than that of {target}; "
            "record them again, or name the target that they came from."
        )


def check_tokens(dataset: ConversationDataset, vocab_size: int, target: Path) -> None:
    """Refuse conversations of another vocabulary."""
    largest = max(int(shard.tensors["tokens"].max()) for shard in dataset.shards)
    if largest >= vocab_size:
        raise InputError(
            f"the conversations hold token {largest}, but {target} has a vocabulary of {vocab_size}; "
            "name the target that they were recorded from."
        )


def usable(dataset: ConversationDataset, max_length: int) -> ConversationDataset:
    """The conversations of which, cut to `max_length` tokens, something is left to learn."""
    kept = [
        place
        for place in range(len(dataset))
        if dataset[place].response_start + 2 <= min(len(dataset[place].tokens), max_length)
    ]
    if not kept:
        raise InputError(
            f"no conversation has two response tokens within max_length = {max_length}; "
            "give a larger one, or record longer responses."
        )
    return dataset.subset(kept)


def held_out_acceptance(method: TrainingMethod, held_out: ConversationDataset) -> ReplayedAcceptance:
    """Acceptance on the first `num_held_out` conversations, of each way to draft."""
    chosen = [held_out[index] for index in range(min(method.config.num_held_out, len(held_out)))]
    return ReplayedAcceptance(chosen, method.drafting())


@dataclass
class _Window:
    """What happened since the last line of the log."""

    started: float
    losses: list[BlockLoss]
    tokens: int = 0
    blocks: int = 0


class _Run:
    def __init__(
        self,
        method: TrainingMethod,
        accelerator: Accelerator,
        network: DraftNetwork,
        draft_ids: torch.Tensor,
        training: ConversationDataset,
        measure: HeldOutAcceptance,
    ) -> None:
        config = self.config = method.config
        self.method, self.network, self.training, self.measure = method, network, training, measure
        self.accelerator = accelerator
        network.to(accelerator.device)
        objective = method.objective(network, draft_ids)
        self.optimizers = build_optimizers(network, config.optimizer)
        self.average = WeightAverage(network, config.average)
        self.progress = load_latest_state(self._states, network, self.optimizers, self.average.weights)
        self.objective = self.accelerator.prepare(objective)
        self.making = describe_training(config, training)
        self.order = ShuffledOrder(len(training), config.seed)
        self.minutes_before, self.first_step = self.progress.minutes, self.progress.step

    def to_the_end(self) -> Path:
        """Train to the last step or the time limit."""
        self.started = self.saved = self.probed = time.monotonic()
        if not self.accelerator.is_main_process:
            self._loop(None, None)
            return self._drafter
        journal = Journal(self.config.run, self.progress.step)
        try:
            with Display(self.config.steps, self.progress.step) as display:
                self._loop(journal, display)
        finally:
            journal.close()
        return self._drafter

    def _loop(self, journal: Journal | None, display: Display | None) -> None:
        window = _Window(time.monotonic(), [])
        while self.progress.step < self.config.steps and not self._out_of_time():
            self._step(window)
            done = self.progress.step == self.config.steps
            if journal is None or display is None:
                continue
            if done or self.progress.step % self.config.steps_per_log == 0:
                self._report(journal, display, window)
                window = _Window(time.monotonic(), [])
            if done or time.monotonic() - self.probed > 60 * self.config.minutes_per_probe:
                self._probe(journal, display)
            if done or time.monotonic() - self.saved > 60 * self.config.minutes_per_checkpoint:
                self._save()
        if journal is None or display is None or self.progress.step == self.config.steps:
            return
        if self.progress.step > self.first_step:
            self._probe(journal, display)  # so that even a short run leaves its best drafter
        self._save()

    def _step(self, window: _Window) -> None:
        step = self.progress.step
        conversations = self._conversations(step)
        batch = self._batch(conversations, step)
        set_rate(
            self.optimizers,
            self.config.optimizer.learning_rate * rate_factor(self.config.optimizer, step, self.config.steps),
        )
        with self.accelerator.autocast():
            result: BlockLoss = self.objective(batch)
        if not math.isfinite(float(result.loss.detach())):
            raise TrainingDivergedError(
                f"the loss is {float(result.loss.detach())} at step {step + 1}; start anew with a lower "
                f"learning rate than {self.config.optimizer.learning_rate}."
            )
        self.accelerator.backward(result.loss)
        self.accelerator.clip_grad_norm_(self.objective.parameters(), self.config.optimizer.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.progress.step = step + 1
        if self.config.average > 0:
            self.average.update(step)
        window.losses.append(result)
        window.tokens += int((batch.labels >= 0).sum())
        window.blocks += batch.anchors.numel()

    def _conversations(self, step: int) -> list[Conversation]:
        """This process's share of the step's conversations, cut to the longest allowed."""
        world, rank, size = self.accelerator.num_processes, self.accelerator.process_index, self.config.batch_size
        first = (step * world + rank) * size
        found = [self.training[self.order.sample(number)] for number in range(first, first + size)]
        return [c if len(c.tokens) <= self.config.max_length else c.cut(self.config.max_length) for c in found]

    def _batch(self, conversations: list[Conversation], step: int) -> TrainingBatch:
        seed = fold_seed(self.config.seed, step, self.accelerator.process_index)
        generator = torch.Generator().manual_seed(seed)
        batch: TrainingBatch = self.method.batch(conversations, generator).to(self.accelerator.device)
        return batch

    def _report(self, journal: Journal, display: Display, window: _Window) -> None:
        seconds = time.monotonic() - window.started
        steps = len(window.losses)
        values = {
            "loss": float(torch.stack([r.loss.detach() for r in window.losses]).mean()),
            "cross_entropy_first": float(torch.stack([r.cross_entropy[0] for r in window.losses]).mean()),
            "accuracy_first": float(torch.stack([r.accuracy[0] for r in window.losses]).mean()),
            "learning_rate": self.optimizers[0].param_groups[0]["lr"],
            "blocks_per_second": window.blocks * self.accelerator.num_processes / seconds,
            "tokens_per_second": window.tokens * self.accelerator.num_processes / seconds,
            "steps_per_second": steps / seconds,
            "minutes": self._minutes(),
        }
        journal.record(self.progress.step, values)
        display.advance(self.progress.step, values)

    def _probe(self, journal: Journal, display: Display) -> None:
        """Measure the held-out acceptance, and export the drafter when the last method's is the best so far."""
        acceptance = self._measure()
        journal.record(self.progress.step, {f"acceptance_{name}": value for name, value in acceptance.items()})
        display.show_acceptance(self.progress.step, acceptance)
        decisive = list(acceptance.values())[-1]
        if decisive > self.progress.best_acceptance:
            self.progress.best_acceptance = decisive
            self._export(acceptance)
        self.probed = time.monotonic()

    def _measure(self) -> Mapping[str, float]:
        self.network.eval()
        try:
            if self.config.average == 0:
                return self.measure(self.network)
            with self.average.applied():
                return self.measure(self.network)
        finally:
            self.network.train()

    def _export(self, acceptance: Mapping[str, float]) -> None:
        measured = {"step": self.progress.step, "held_out_acceptance_length": dict(acceptance)}
        extra = self.making | measured
        if self.config.average == 0:
            self.method.save(self.network, self._drafter, extra)
            return
        with self.average.applied():
            self.method.save(self.network, self._drafter, extra)

    def _save(self) -> None:
        self.progress.minutes = self._minutes()
        save_state(self._states, self.progress, self.network, self.optimizers, self.average.weights)
        self.saved = time.monotonic()

    def _minutes(self) -> float:
        return self.minutes_before + (time.monotonic() - self.started) / 60

    def _out_of_time(self) -> bool:
        """Whether any process has passed the time limit: all stop after the same step."""
        if self.config.max_minutes is None:
            return False
        if time.monotonic() - self.started > 60 * self.config.max_minutes:
            self.accelerator.set_trigger()
        return self.accelerator.check_trigger()

    @property
    def _states(self) -> Path:
        return self.config.run / "checkpoints"

    @property
    def _drafter(self) -> Path:
        return self.config.run / "drafter"
