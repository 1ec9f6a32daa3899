"""The table a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.metrics import STAGES

_RIGHT = "right"
_COLUMNS = ("method", "tokens/s", "speed-up", "95% interval", "tau", "nodes/round", "same text")


def results_table(
    rows: Sequence[dict[str, Any]],
    provenance: dict[str, Any],
    policies: Sequence[dict[str, Any]] = (),
    stream: Sequence[dict[str, Any]] = (),
) -> RenderableType:
    """Speeds and acceptance by method, policies over the best fixed plan, what learning gained, stage times, provenance
    last."""
    judged = any(row.get("judged") for row in rows)
    speeds = Table(*_COLUMNS, *([_RIGHT] if judged else []), box=None, pad_edge=False)
    speeds.columns[0].min_width = _longest_word(rows)
    for row in rows:
        speeds.add_row(*_speed_cells(row), *([f"{row['right']}/{row['judged']}"] if judged else []))
    parts: list[RenderableType] = [speeds, Text("")]
    if policies:
        parts += [_policy_table(policies), Text("")]
    if stream:
        parts += [_stream_table(stream), Text("")]
    if any(row["stage_ms"] for row in rows):
        parts += [_stage_table(rows), Text("")]
    return Group(*parts, Text("\n".join(_facts(rows, provenance))))


def _longest_word(rows: Sequence[dict[str, Any]]) -> int:
    """Names break between words only."""
    return max((len(word) for row in rows for word in row["method"].split()), default=0)


def _speed_cells(row: dict[str, Any]) -> list[str]:
    speedup = f"{row['speedup']:.2f}x" if "speedup" in row else "-"
    interval = f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}" if "speedup" in row else "-"
    tau = row["acceptance_length"]
    nodes = row["nodes_per_round"]
    return [
        row["method"],
        f"{row['tokens_per_s']:.1f}",
        speedup,
        interval,
        "-" if tau is None else f"{tau:.2f}",
        "-" if nodes is None else f"{nodes:.1f}",
        _same_text(row),
    ]


def _same_text(row: dict[str, Any]) -> str:
    if row.get("same_text") is None:
        return "another sample" if "same_text" in row else "-"
    text = f"{row['same_text']}/{row['prompts']}"
    apart = row["prompts"] - row["same_text"]
    if apart:
        text += f" ({row['near_ties']} of {apart} at a near-tie, largest gap {row['largest_gap']:.3g})"
    return text


def _stage_table(rows: Sequence[dict[str, Any]]) -> Table:
    stages = [stage for stage in STAGES if any(stage in row["stage_ms"] for row in rows)]
    table = Table("ms a round", *stages, "outside the models", "drafter calls", box=None, pad_edge=False)
    table.columns[0].min_width = _longest_word(rows)
    for row in rows:
        if row["stage_ms"]:
            times = [f"{row['stage_ms'].get(stage, 0.0):.2f}" for stage in stages]
            table.add_row(row["method"], *times, f"{100 * row['overhead']:.1f}%", f"{row['drafter_calls']:.2f}")
    return table


def _policy_table(policies: Sequence[dict[str, Any]]) -> Table:
    table = Table("policy", "over a fixed plan", "ratio", "95% interval", box=None, pad_edge=False)
    for row in policies:
        over = f"{row['over']} (the fastest here)" if row["is_best"] else row["over"]
        table.add_row(row["method"], over, f"{row['ratio']:.3f}", f"{row['low']:.3f}-{row['high']:.3f}")
    return table


def _stream_table(stream: Sequence[dict[str, Any]]) -> Table:
    spans = [f"{part['first']}-{part['last']}" for part in stream[0]["parts"]]
    table = Table("tau of queries", *spans, "updates", "kept", "learning, s", "over frozen", box=None, pad_edge=False)
    table.columns[0].min_width = _longest_word(stream)
    for row in stream:
        taus = [f"{part['acceptance_length']:.2f}" for part in row["parts"]]
        table.add_row(row["method"], *taus, *_learned_cells(row))
    return table


def _learned_cells(row: dict[str, Any]) -> list[str]:
    if "updates" not in row:
        return ["-"] * 4
    updates, over = row["updates"], row["over_frozen"]
    return [
        str(len(updates)),
        str(sum(update["kept"] for update in updates)),
        f"{sum(update['seconds'] for update in updates):.1f}",
        "-" if over is None else f"{over:.3f}x",
    ]


def _facts(rows: Sequence[dict[str, Any]], provenance: dict[str, Any]) -> list[str]:
    repetition = ", ".join(f"{row['method']} {row['repetition_rate']:.2f}" for row in rows)
    lines = [f"{key}: {value}" for key, value in provenance.items() if key != "command"]
    looks = ", ".join(f"{row['method']} {row['predict_ms']:.2f}" for row in rows if row.get("predict_ms"))
    looked = [f"a policy's look at the prompt, ms: {looks}"] if looks else []
    cut = ", ".join(f"{row['method']} {row['hit_limit']:.2f}" for row in rows)
    return [*lines, *looked, f"repeated 4-grams: {repetition}", f"answers cut at the limit: {cut}"]
