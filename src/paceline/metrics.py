"""One definition for each number: stage times, acceptance, speed-ups with their intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

#: The stages of a round, in order; a report shows them in this order.
STAGES = ("choose", "draft", "grow", "verify", "accept", "commit", "other")


class StageClock:
    """Wall-clock per stage: `lap(stage)` books the time since the last lap to that stage.

    `seconds` are those of all rounds, `round_seconds` those since the last `start`; `drafter_calls` counts forwards of
    draft networks. `wait` is called before each lap:
    where a device works behind the host's back, it waits for the device.
    """

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self._wait = wait
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.round_seconds: defaultdict[str, float] = defaultdict(float)
        self.drafter_calls = 0
        self._last = perf_counter()

    def start(self) -> None:
        """Begin a round: forget the time since the last lap, and the last round's laps."""
        self.round_seconds.clear()
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        if self._wait is not None:
            self._wait()
        now = perf_counter()
        self.seconds[stage] += now - self._last
        self.round_seconds[stage] += now - self._last
        self._last = now


def acceptance_length(accepted: int, rounds: int) -> float:
    """Mean tokens emitted per round, bonus included (tau): 1 + accepted / rounds; 0 without rounds."""
    return 1.0 + accepted / rounds if rounds else 0.0


def tokens_per_s(tokens: int, seconds: float) -> float:
    """Emitted tokens per second from the prompt to the last token, prefill included; 0 without time."""
    return tokens / seconds if seconds > 0 else 0.0


def paired_speedup(
    baseline: Sequence[float], method: Sequence[float], confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Speed-up over a baseline on the same prompts: (ratio, low, high).

    Inputs are seconds per token, prompt by prompt. The ratio is the median over prompts of baseline over
    method; the interval is a percentile bootstrap over prompts.
    """
    ratios = np.asarray(baseline, dtype=np.float64) / np.asarray(method, dtype=np.float64)
    draws = np.random.default_rng(seed).choice(ratios, size=(resamples, len(ratios)))
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(np.median(draws, axis=1), [tail, 100.0 - tail])
    return float(np.median(ratios)), float(low), float(high)


def repetition_rate(tokens: Sequence[int], n: int = 4) -> float:
    """Share of n-grams that occurred before in the same text: a looping model inflates acceptance."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
