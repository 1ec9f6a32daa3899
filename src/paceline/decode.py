"""The loop: choose, draft, verify, accept, commit. Written once, for every method and batch size.

What is a method elsewhere is an argument here: the drafter proposes, the policy says how much, the target
verifies. Plain decoding is the same round with zero nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.acceptance import Accepted, match
from paceline.choice import accept_sampled, choose_tokens, edit_logits, keep_logprobs
from paceline.drafters.base import Drafter, DraftRequest
from paceline.kv_cache import SlotCache
from paceline.metrics import StageClock
from paceline.policies.base import DraftView, Plan, Policy, PromptView, RoundView, SequenceView
from paceline.prefixes import KeptPrefix, Reuse
from paceline.sampled_acceptance import SampledRule
from paceline.sequence import ActiveSequence
from paceline.target.base import Pass, Target
from paceline.tree import DraftTree, TreeBatch, pack


class RoundObserver:
    """Sees what the target computed: data recorders and online adaptation. It cannot change the text.

    A request ends with `on_finish`, whether it was answered or given up. `between_rounds` is called before every round:
    the place for what must not happen within one.
    """

    feature_layers: tuple[int, ...]

    def on_prefill(self, sequence: ActiveSequence, result: Pass) -> None:
        """A prompt was read."""

    def on_round(self, sequences: Sequence[ActiveSequence], result: Pass, accepted: Accepted) -> None:
        """A round was verified and committed."""

    def on_finish(self, sequence: ActiveSequence) -> None:
        """A sequence ends."""

    def between_rounds(self) -> None:
        """No round is under way."""


@dataclass(frozen=True)
class Parts:
    """The swappable parts of the loop. Without a drafter every round is a plain one.

    `rule` None is the match rule, which serves every tree; the others need chains that the drafter sampled.
    """

    target: Target
    drafter: Drafter | None = None
    policy: Policy | None = None
    observer: RoundObserver | None = None
    rule: SampledRule | None = None

    def __post_init__(self) -> None:
        layers = self.drafter.feature_layers if self.drafter is not None else ()
        assert self.observer is None or not layers or layers == self.observer.feature_layers, "two sets of taps"

    def feature_layers(self, drafts: bool) -> tuple[int, ...]:
        """Target layers whose outputs are read, when the pass serves a sequence that drafts and when not."""
        if self.observer is not None:
            return self.observer.feature_layers
        return self.drafter.feature_layers if self.drafter is not None and drafts else ()


@dataclass
class Batch:
    """The sequences in flight; sequence i occupies row i of the caches."""

    cache: SlotCache
    draft_state: Any
    sequences: list[ActiveSequence] = field(default_factory=list)

    @property
    def drafts(self) -> bool:
        """Whether any sequence wants drafting."""
        return self.draft_state is not None and any(s.settings.draft for s in self.sequences)


def admit(parts: Parts, batch: Batch, sequence: ActiveSequence, reuse: Reuse | None = None) -> int:
    """Read a prompt, or what `reuse` lacks of it, into the next free row; the first token, which becomes the anchor."""
    row = len(batch.sequences)
    prompt = sequence.tokens
    start = reuse.length if reuse is not None else 0
    drafts = sequence.settings.draft
    if reuse is not None:
        batch.cache.restore(row, reuse.prefix.target, start)
        if parts.drafter is not None and drafts:
            batch.draft_state.restore(row, reuse.prefix.draft, start)
    result, hidden = _prefill(parts, batch, row, prompt[start:], drafts)
    batch.sequences.append(sequence)
    if parts.drafter is not None and result.features is not None:
        parts.drafter.observe(batch.draft_state, row, result.features, [len(prompt) - start])
    if parts.observer is not None:
        parts.observer.on_prefill(sequence, result)
    if parts.policy is not None and drafts:
        _begin(parts.policy, sequence, result, hidden)
    sequence.ends = sequence.settings.ends(parts.target.info.eos_token_ids)
    empty = [DraftTree.empty()]
    if sequence.constraint is not None:
        sequence.constraint.prune(empty[0])
    root = pack(empty, torch.tensor(prompt[-1:])).to(parts.target.info.device)
    (first,) = _accept([sequence], empty, root, result.logits, None).tokens
    sequence.commit(first)
    return first[0]


def decode_round(parts: Parts, batch: Batch, clock: StageClock) -> list[list[int]]:
    """One round over every sequence of the batch; the tokens that each one gained, bonus last."""
    clock.start()
    requests = _choose(parts, batch)
    clock.lap("choose")
    trees = _draft(parts, batch, requests, clock)
    drafts = _limit(parts, _extend(parts, batch, requests, _views(batch, requests, trees), clock))
    trees = [draft.tree for draft in drafts]
    clock.lap("choose")
    packed = pack(trees, torch.tensor([s.tokens[-1] for s in batch.sequences])).to(parts.target.info.device)
    clock.lap("grow")
    result = parts.target.verify(batch.cache, packed, parts.feature_layers(batch.drafts))
    clock.lap("verify")
    accepted = _accept(batch.sequences, trees, packed, result.logits, parts.rule)
    clock.lap("accept")
    _commit(parts, batch, result, accepted)
    clock.lap("commit")
    for sequence, draft in zip(batch.sequences, drafts, strict=True):
        block_size = draft.plan.block_size if draft.plan.tree_budget else 0
        sequence.statistics.count_round(draft.tree.num_nodes, block_size)
    if parts.policy is not None:
        parts.policy.learn(_outcome(drafts, accepted, clock))
    clock.lap("other")
    return accepted.tokens


def keep_prefix(parts: Parts, batch: Batch, row: int) -> KeptPrefix:
    """A copy of what the caches hold of a row's committed tokens."""
    sequence = batch.sequences[row]
    has_draft = parts.drafter is not None and sequence.settings.draft
    draft = batch.draft_state.save(row) if has_draft else None
    tokens = tuple(sequence.tokens[: batch.cache.lengths[row]])
    return KeptPrefix(tokens, batch.cache.save(row), draft, has_draft)


def empty_row(batch: Batch, row: int) -> None:
    """Forget what the caches hold of a row."""
    for state in (batch.cache, batch.draft_state):
        if state is not None:
            state.clear(row)


def leave(batch: Batch, row: int) -> None:
    """Free a row: the last sequence takes its place."""
    last = len(batch.sequences) - 1
    for state in (batch.cache, batch.draft_state):
        if state is not None:
            state.move(last, row)
    empty_row(batch, last)
    batch.sequences[row] = batch.sequences[last]
    batch.sequences.pop()


def _prefill(
    parts: Parts, batch: Batch, row: int, tokens: Sequence[int], drafts: bool
) -> tuple[Pass, Float[Tensor, " h"] | None]:
    """Read a prompt; apart from the features, the last layer's output at its end where the policy wants it."""
    layers = parts.feature_layers(drafts)
    if not drafts or parts.policy is None or not parts.policy.needs_hidden:
        return parts.target.prefill(batch.cache, row, tokens, layers), None
    info = parts.target.info
    result = parts.target.prefill(batch.cache, row, tokens, (*layers, info.num_layers - 1))
    assert result.features is not None, "a layer was asked for"
    features, hidden = result.features.split([info.hidden_size * len(layers), info.hidden_size], -1)
    return Pass(result.logits, features if layers else None), hidden[0, -1]


def _begin(policy: Policy, sequence: ActiveSequence, result: Pass, hidden: Float[Tensor, " h"] | None) -> None:
    """Let the policy see the prompt."""
    started = perf_counter()
    features = result.features[0, -1] if result.features is not None else None
    sequence.policy_state = policy.begin(PromptView(sequence.settings, result.logits[0, -1], features, hidden))
    sequence.statistics.predict_ms = 1e3 * (perf_counter() - started)


def _view(sequence: ActiveSequence) -> SequenceView:
    return SequenceView(sequence.settings, sequence.statistics, sequence.policy_state)


def _choose(parts: Parts, batch: Batch) -> list[DraftRequest]:
    requests = []
    for sequence in batch.sequences:
        if parts.policy is None or not sequence.settings.draft:
            requests.append(DraftRequest(sequence.tokens, 0, 0, 0))
            continue
        plan = parts.policy.choose(_view(sequence))
        # The bonus always comes, so nodes deeper than the tokens still wanted, less one, cannot be emitted.
        depth = sequence.remaining - 1
        temperature, seed = sequence.settings.temperature, sequence.settings.seed
        requests.append(DraftRequest(sequence.tokens, plan.block_size, plan.tree_budget, depth, temperature, seed))
    return requests


def _draft(parts: Parts, batch: Batch, requests: list[DraftRequest], clock: StageClock) -> list[DraftTree]:
    if parts.drafter is None or not any(request.wants_nodes for request in requests):
        trees = [DraftTree.empty() for _ in requests]
    else:
        trees = parts.drafter.draft(batch.draft_state, requests, clock)
    return _pruned(batch, trees)


def _pruned(batch: Batch, trees: Sequence[DraftTree]) -> list[DraftTree]:
    """The trees without what a grammar forbids."""
    return [
        tree if sequence.constraint is None else sequence.constraint.prune(tree)
        for sequence, tree in zip(batch.sequences, trees, strict=True)
    ]


def _views(batch: Batch, requests: Sequence[DraftRequest], trees: Sequence[DraftTree]) -> list[DraftView]:
    return [
        DraftView(_view(sequence), len(sequence.tokens), _asked(request), tree)
        for sequence, request, tree in zip(batch.sequences, requests, trees, strict=True)
    ]


def _extend(
    parts: Parts, batch: Batch, requests: Sequence[DraftRequest], drafts: list[DraftView], clock: StageClock
) -> list[DraftView]:
    """The drafts, some of them grown past the end of their blocks where the policy wants it."""
    if parts.policy is None or parts.drafter is None or not parts.policy.may_extend or parts.rule is not None:
        return drafts
    chosen = parts.policy.extends(drafts)
    if not any(chosen):
        return drafts
    trees = [draft.tree for draft in drafts]
    extended = parts.drafter.extend(batch.draft_state, requests, trees, chosen, clock)
    grew = [new is not old for new, old in zip(extended, trees, strict=True)]
    pruned = _pruned(batch, extended)
    return [replace(d, tree=tree, is_extended=new) for d, tree, new in zip(drafts, pruned, grew, strict=True)]


def _limit(parts: Parts, drafts: list[DraftView]) -> list[DraftView]:
    """The drafts, cut to what the policy wants verified. A sampled chain goes whole: its rule says where it ends."""
    if parts.policy is None or parts.rule is not None:
        return drafts
    counts = parts.policy.limit(drafts)
    return [replace(draft, tree=draft.tree.first(count)) for draft, count in zip(drafts, counts, strict=True)]


def _asked(request: DraftRequest) -> Plan:
    """What the drafter was asked for; where nothing could be of use, nothing."""
    return Plan(request.block_size, request.tree_budget if request.wants_nodes else 0)


def _outcome(drafts: Sequence[DraftView], accepted: Accepted, clock: StageClock) -> RoundView:
    """What the policy learns of the round, with the seconds of this round alone."""
    seconds = clock.round_seconds
    models = {"draft", "grow", "verify"}
    other = sum(seconds[stage] for stage in seconds if stage not in models)
    drafting = seconds["draft"] + seconds["grow"]
    return RoundView(drafts, accepted.paths, drafting, seconds["verify"], other)


def _accept(
    sequences: Sequence[ActiveSequence],
    trees: Sequence[DraftTree],
    packed: TreeBatch,
    logits: Tensor,
    rule: SampledRule | None,
) -> Accepted:
    """Settle each sequence's path and bonus; the match rule looks at nothing of the drafter but its trees' tokens."""
    logits = edit_logits(sequences, packed, logits)
    if rule is None:
        accepted = match(packed, choose_tokens(sequences, packed, logits))
    else:
        accepted = accept_sampled(rule, sequences, trees, logits)
    keep_logprobs(sequences, logits, accepted)
    return accepted


def _commit(parts: Parts, batch: Batch, result: Pass, accepted: Accepted) -> None:
    batch.cache.keep(accepted.paths)
    if parts.drafter is not None and result.features is not None:
        kept, counts = _gather_kept(result.features, accepted.paths)
        parts.drafter.observe(batch.draft_state, 0, kept, counts)
    if parts.observer is not None:
        parts.observer.on_round(batch.sequences, result, accepted)
    for sequence, tokens in zip(batch.sequences, accepted.tokens, strict=True):
        sequence.commit(tokens)


def _gather_kept(features: Tensor, paths: Sequence[Sequence[int]]) -> tuple[Tensor, list[int]]:
    """Features of the root and the accepted path of each row, padded to the longest: [b, 1 + longest, f]."""
    counts = [1 + len(path) for path in paths]
    longest = max(counts)
    index = torch.tensor([[0, *path] + [0] * (longest - 1 - len(path)) for path in paths], device=features.device)
    rows = torch.arange(len(paths), device=features.device)[:, None]
    return features[rows, index], counts
