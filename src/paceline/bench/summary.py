"""From measurements to the rows of the table and the JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from paceline.bench.measurement import Measurement
from paceline.bench.method import HF, PLAIN, Described
from paceline.bench.pooled import per_round, rate, reached, stage_ms, tau, with_rounds
from paceline.metrics import paired_speedup, repetition_rate


def summarise(methods: Sequence[Described], measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """One row per method; all measurements are of requests that asked the same."""
    by_method = {m.name: [x for x in measurements if x.method == m.name] for m in methods}
    baseline = by_method.get(PLAIN)
    return [_row(m, by_method[m.name], baseline) for m in methods]


def _row(method: Described, done: Sequence[Measurement], baseline: Sequence[Measurement] | None) -> dict[str, Any]:
    apart = [x.divergence for x in done if x.divergence is not None]
    row: dict[str, Any] = {
        "method": method.name,
        "settings": dict(method.settings),
        "prompts": len(done),
        "tokens": sum(len(x.answer.tokens) for x in done),
        "tokens_per_s": rate(done),
    }
    if baseline is not None:
        ratio, low, high = paired_speedup([x.seconds_per_token for x in baseline], [x.seconds_per_token for x in done])
        row |= {"speedup": ratio, "speedup_low": low, "speedup_high": high}
        row |= {"same_text": len(done) - len(apart), "near_ties": sum(d.is_near_tie for d in apart)}
        if method.settings.get("rule") and not apart and not _same_texts(done, baseline):
            row["same_text"] = None  # other samples of the same distribution
        row["largest_gap"] = max((d.gap for d in apart), default=0.0)
    judged = [x.is_right for x in done if x.is_right is not None]
    row |= {"judged": len(judged), "right": sum(judged)}
    row["hit_limit"] = mean(x.hit_limit for x in done)
    row["repetition_rate"] = mean(repetition_rate(x.answer.tokens) for x in done)
    return row | _loop_counts(done)


def slower_than_hugging_face(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning where plain decoding is slower than Hugging Face's: speed-ups over it would flatter."""
    rates = {row["method"]: row["tokens_per_s"] for row in rows}
    if PLAIN not in rates or HF not in rates or rates[PLAIN] >= rates[HF]:
        return None
    return (
        f"WARNING: plain decoding gives {rates[PLAIN]:.1f} tokens/s and Hugging Face's generate {rates[HF]:.1f}; "
        "speed-ups over plain flatter here."
    )


def _same_texts(done: Sequence[Measurement], baseline: Sequence[Measurement]) -> bool:
    return all(x.answer.tokens == plain.answer.tokens for x, plain in zip(done, baseline, strict=True))


def _loop_counts(done: Sequence[Measurement]) -> dict[str, Any]:
    """Acceptance, nodes and stage times (milliseconds a round), summed over prompts before dividing."""
    if not with_rounds(done):
        return {
            "acceptance_length": None,
            "nodes_per_round": None,
            "drafter_calls": None,
            "stage_ms": {},
            "overhead": None,
        }
    spent = stage_ms(done)
    models = spent.get("draft", 0.0) + spent.get("verify", 0.0)
    return {
        "acceptance_length": tau(done),
        "nodes_per_round": per_round(done, "drafted"),
        "acceptance_by_position": reached(done),
        "drafter_calls": per_round(done, "drafter_calls"),
        "stage_ms": spent,
        "overhead": 1.0 - models / sum(spent.values()) if spent else None,
        "predict_ms": mean(x.answer.statistics.predict_ms for x in done if x.answer.statistics is not None),
    }
