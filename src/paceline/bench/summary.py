"""From measurements to the rows of the table and the JSON file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from paceline.bench.method import Method
from paceline.bench.run import Measurement
from paceline.metrics import STAGES, acceptance_length, paired_speedup, repetition_rate, tokens_per_s
from paceline.near_ties import Divergence
from paceline.prompts import Prompt

PLAIN = "plain"


def summarise(
    methods: Sequence[Method],
    measurements: Sequence[Measurement],
    divergences: Mapping[tuple[str, Prompt], Divergence],
) -> list[dict[str, Any]]:
    """One row per method; `divergences` is keyed by (method, prompt)."""
    by_method = {m.name: [x for x in measurements if x.method == m.name] for m in methods}
    baseline = by_method.get(PLAIN)
    return [_row(m, by_method[m.name], baseline, divergences) for m in methods]


def _row(
    method: Method,
    done: Sequence[Measurement],
    baseline: Sequence[Measurement] | None,
    divergences: Mapping[tuple[str, Prompt], Divergence],
) -> dict[str, Any]:
    tokens = sum(len(x.answer.tokens) for x in done)
    apart = [divergences[key] for x in done if (key := prompt_key(x)) in divergences]
    row: dict[str, Any] = {
        "method": method.name,
        "settings": method.settings,
        "prompts": len(done),
        "tokens": tokens,
        "tokens_per_s": tokens_per_s(tokens, sum(x.seconds for x in done)),
    }
    if baseline is not None:
        ratio, low, high = paired_speedup([x.seconds_per_token for x in baseline], [x.seconds_per_token for x in done])
        row |= {"speedup": ratio, "speedup_low": low, "speedup_high": high}
        row |= {"same_text": len(done) - len(apart), "near_ties": sum(d.is_near_tie for d in apart)}
        if method.settings.get("rule") and not apart and not _same_texts(done, baseline):
            row["same_text"] = None  # other samples of the same distribution
        row["largest_gap"] = max((d.gap for d in apart), default=0.0)
    row["repetition_rate"] = mean(repetition_rate(x.answer.tokens) for x in done)
    return row | _loop_counts(done)


def _same_texts(done: Sequence[Measurement], baseline: Sequence[Measurement]) -> bool:
    return all(x.answer.tokens == plain.answer.tokens for x, plain in zip(done, baseline, strict=True))


def _loop_counts(done: Sequence[Measurement]) -> dict[str, Any]:
    """Acceptance, nodes and stage times (milliseconds a round), summed over prompts before dividing."""
    statistics = [x.answer.statistics for x in done if x.answer.statistics is not None]
    rounds = sum(s.rounds for s in statistics)
    if not rounds:
        return {
            "acceptance_length": None,
            "nodes_per_round": None,
            "drafter_calls": None,
            "stage_ms": {},
            "overhead": None,
        }
    spent: Counter[str] = Counter()
    reached: Counter[int] = Counter()
    for s in statistics:
        spent.update(s.stage_ms)
        reached.update(dict(enumerate(s.accepted_by_position)))
    models = spent["draft"] + spent["verify"]
    return {
        "acceptance_length": acceptance_length(sum(s.accepted for s in statistics), rounds),
        "nodes_per_round": sum(s.drafted for s in statistics) / rounds,
        "acceptance_by_position": [reached[i] / rounds for i in sorted(reached)],
        "drafter_calls": sum(s.drafter_calls for s in statistics) / rounds,
        "stage_ms": {stage: spent[stage] / rounds for stage in STAGES if stage in spent},
        "overhead": 1.0 - models / spent.total() if spent else None,
        "predict_ms": mean(s.predict_ms for s in statistics),
    }


def prompt_key(measurement: Measurement) -> tuple[str, Prompt]:
    """(method, prompt)."""
    return measurement.method, measurement.prompt


def per_prompt(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The measurements as they are, for later reports."""
    return [
        {
            "method": x.method,
            "set": x.prompt.set_name,
            "id": x.prompt.id,
            "prompt_tokens": x.prompt_tokens,
            "tokens": len(x.answer.tokens),
            "seconds": x.seconds,
            "all_seconds": list(x.all_seconds),
            "rounds": x.answer.statistics.rounds if x.answer.statistics else None,
            "accepted": x.answer.statistics.accepted if x.answer.statistics else None,
            "drafted": x.answer.statistics.drafted if x.answer.statistics else None,
        }
        for x in measurements
    ]
