"""What a drafter accepts on answers of its target, as its checkpoint says it reads and as it may have meant.

Conventions that no file tells for certain (whether tapped layers are counted by their inputs or their outputs, which
rotary embedding it was trained with) show in what is accepted: the target answers a few prompts once, the features of
all layers in question are kept, and each reading drafts the same answers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from paceline.attach import make_ready
from paceline.checkpoints.dialect import Dialect
from paceline.checkpoints.networks import load_network
from paceline.checkpoints.taps import inputs_of
from paceline.decode import Parts
from paceline.doctor.beside_target import TargetFacts
from paceline.doctor.finding import Finding, error
from paceline.doctor.opened import Opened
from paceline.drafters.base import Drafter
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.eagle3 import Eagle3Drafter
from paceline.drafters.heads import HeadsDrafter
from paceline.drafters.specblock import SpecBlockDrafter
from paceline.errors import InputError
from paceline.learning.conversation import Conversation
from paceline.learning.recorder import Recorder
from paceline.metrics import acceptance_length, paired_speedup
from paceline.models.rope import RopeConfig
from paceline.prompts import Prompt, check_length
from paceline.replay import DraftingMethod, ReplayedAcceptance
from paceline.target.base import Target
from paceline.text_model import Model
from paceline.tree import GROWTHS
from paceline.types import GenerationSettings

AS_STORED = "as stored"
TARGETS_ROPE, PLAIN_ROPE = "with the target's RoPE", "with RoPE theta 10000"
_CONFIDENCE, _LEAST_GAIN = 0.99, 1.03
"""Of the bootstrap over answers, and how much more a reading must accept to matter."""
_SHIFTS = (-1, 1)


@dataclass(frozen=True)
class Reading:
    """A way to read a checkpoint: the layers that it taps, and its network."""

    name: str
    layers: tuple[int, ...]
    network: Any


@dataclass(frozen=True)
class Measured:
    """(accepted nodes, rounds) of every answer, by the name of the reading."""

    counts: Mapping[str, Sequence[tuple[int, int]]]

    @property
    def rounds(self) -> int:
        """Of all answers, as stored."""
        return sum(rounds for _, rounds in self.counts[AS_STORED])

    @property
    def acceptance(self) -> dict[str, float]:
        """Tokens a round, bonus included, of every reading."""
        return {
            name: acceptance_length(sum(accepted for accepted, _ in each), sum(rounds for _, rounds in each))
            for name, each in self.counts.items()
        }

    @property
    def undecided(self) -> list[str]:
        """Readings that accept neither more nor less than what is stored, as far as so few rounds show."""
        return [name for name in self.counts if name != AS_STORED and self.gain(name)[2] >= 1.0 >= self.gain(name)[1]]

    def gain(self, name: str) -> tuple[float, float, float]:
        """How many times as much a reading accepts as what is stored (median of the answers), with its interval."""
        stored, other = (
            [rounds / (accepted + rounds) for accepted, rounds in self.counts[key]] for key in (AS_STORED, name)
        )
        return paired_speedup(stored, other, _CONFIDENCE)


def measure(opened: Opened, facts: TargetFacts, target: Target, prompts: Sequence[Prompt], max_tokens: int) -> Measured:
    """What every reading of a checkpoint accepts; it must load.

    Raises:
        InputError: the target does not answer any prompt with two tokens, or a prompt is too long for it.
    """
    readings = list(_readings(opened, facts, target))
    layers = sorted({layer for reading in readings for layer in reading.layers})
    shown = _answers(target, facts.tokenizer, layers, prompts, max_tokens)
    if not shown:
        raise InputError("no answer has two tokens, so nothing could be drafted; give more tokens or other prompts.")
    return Measured(MappingProxyType({each.name: _counts(opened, each, layers, shown) for each in readings}))


def judge(opened: Opened, measured: Measured) -> Iterator[Finding]:
    """The readings of layers and of rotary embeddings under which most is accepted, where that is more than as stored,
    and more than chance shows."""
    gains = {name: measured.gain(name) for name in measured.counts if name != AS_STORED}
    better = {name: gain for name, (gain, low, _) in gains.items() if low > 1.0 and gain >= _LEAST_GAIN}
    tau = measured.acceptance
    shifts = [name for name in map(_shift_name, _SHIFTS) if name in better]
    if shifts:
        best = max(shifts, key=better.__getitem__)
        yield error(
            "layer ids",
            f"{tau[best]:.2f} tokens a round are accepted {best}, but {tau[AS_STORED]:.2f} as stored",
            "Its tapped layers are counted by the other convention (outputs or inputs of layers): wrong ones are read.",
            _advice(opened, next(shift for shift in _SHIFTS if _shift_name(shift) == best)),
        )
    ropes = [name for name in (TARGETS_ROPE, PLAIN_ROPE) if name in better]
    if ropes:
        best = max(ropes, key=better.__getitem__)
        yield error(
            "RoPE",
            f"{tau[best]:.2f} tokens a round are accepted {best}, but {tau[AS_STORED]:.2f} as stored",
            "It was trained with another rotary embedding than its config.json says.",
            "Set rope_theta, rope_scaling and partial_rotary_factor to those.",
        )


def _advice(opened: Opened, shift: int) -> str:
    """What to write where, in the convention of the key that stands there."""
    layers = [layer + shift for layer in opened.config.target_layer_ids]
    key, counts_inputs = opened.tap_key
    return f"Set {key} in its config.json to {inputs_of(layers) if counts_inputs else layers}."


def _shift_name(shift: int) -> str:
    return f"from the layers one {'higher' if shift > 0 else 'lower'}"


def _readings(opened: Opened, facts: TargetFacts, target: Target) -> Iterator[Reading]:
    network, layers = _load(opened, target), tuple(opened.config.target_layer_ids)
    yield Reading(AS_STORED, layers, network)
    for shift in _SHIFTS:
        moved = tuple(layer + shift for layer in layers)
        if all(0 <= layer < target.info.num_layers for layer in moved):
            yield Reading(_shift_name(shift), moved, network)
    own = getattr(opened.config, "rope", None)
    if own is None:
        return
    if facts.rope not in (None, own):
        yield Reading(TARGETS_ROPE, layers, _load(opened, target, rope=facts.rope))
    if opened.dialect is Dialect.EAGLE3 and RopeConfig() not in (own, facts.rope):  # what its authors' code has
        yield Reading(PLAIN_ROPE, layers, _load(opened, target, rope=RopeConfig()))


def _load(opened: Opened, target: Target, **changes: Any) -> Any:
    """The network, with changes of its config, ready for the target."""
    network = load_network(opened.dialect, opened.path, target.info.num_layers)
    if changes:
        other = type(network)(replace(network.config, **changes))
        other.load_state_dict(network.state_dict())
        network = other.eval()
    make_ready(network, network.config, target)
    return network


def _drafter(dialect: Dialect, network: Any) -> Drafter:
    match dialect:
        case Dialect.Z_LAB:
            return DFlashDrafter(network, GROWTHS["best_first"])
        case Dialect.EAGLE3:
            return Eagle3Drafter(network)
        case Dialect.HEADS:
            return HeadsDrafter(network, GROWTHS["best_first"])
        case _:
            return SpecBlockDrafter(network)


def _counts(
    opened: Opened, reading: Reading, recorded: Sequence[int], shown: Sequence[Conversation]
) -> list[tuple[int, int]]:
    drafter = _drafter(opened.dialect, reading.network)
    size, budget = drafter.default_block_size, drafter.default_tree_budget
    method = DraftingMethod(reading.name, lambda _: drafter, size, budget)
    seen = [_tapped(conversation, recorded, reading.layers) for conversation in shown]
    return ReplayedAcceptance(seen, [method]).counts_of_each(reading.network, method)


def _answers(
    target: Target, tokenizer: Any, layers: Sequence[int], prompts: Sequence[Prompt], max_tokens: int
) -> list[Conversation]:
    """The target's greedy answers of three tokens or more, with the features of `layers` and the likeliest tokens."""
    recorder = Recorder(layers)
    model = Model(Parts(target, observer=recorder), tokenizer, max_batch=len(prompts))
    for prompt in prompts:
        check_length(prompt, len(model.encode(prompt.text)) + max_tokens, target.info.max_context)
    requests = [model.submit(prompt.text, GenerationSettings(max_tokens=max_tokens)) for prompt in prompts]
    for request in requests:
        recorder.watch(request.sequence)
    model.engine.run()
    taken = [(r, recorder.take(r.sequence, [*r.prompt, *r.tokens], len(r.prompt))) for r in requests]
    return [conversation for request, conversation in taken if len(request.tokens) > 1]


def _tapped(conversation: Conversation, recorded: Sequence[int], layers: Sequence[int]) -> Conversation:
    """The same conversation, with the features of these layers alone, in this order."""
    parts = dict(zip(recorded, conversation.features.chunk(len(recorded), -1), strict=True))
    return replace(conversation, features=torch.cat([parts[layer] for layer in layers], -1))
