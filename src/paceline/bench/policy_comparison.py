"""Policies against the best fixed plan on the same prompts, and against the oracle that knew the best one of each.

Both are chosen afterwards, from the measurements that they are then compared on, so that the machine's noise is on
their side: a policy that comes near the best fixed plan is not flattered, and the oracle is out of reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.bench.measurement import Measurement
from paceline.bench.method import Described
from paceline.bench.pooled import rate
from paceline.metrics import paired_speedup

ORACLE = "oracle"


def compare_policies(methods: Sequence[Described], measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """For every method that ran under two or more fixed plans: each of its other policies over each of those.

    A row has `method`, `over` (a fixed plan), `is_best` (whether that one gave the most tokens/s over all prompts), and
    `ratio`, `low` and `high`: the median over prompts, paired, with a bootstrap interval. The best plan comes first.
    """
    rows = []
    for base, group in _groups(methods).items():
        times = {m.name: [x.seconds_per_token for x in measurements if x.method == m.name] for m in group}
        fixed = [m.name for m in group if m.settings.get("policy") == "fixed"]
        if len(fixed) < 2 or not times[fixed[0]]:
            continue
        fixed.sort(key=lambda name: rate([x for x in measurements if x.method == name]), reverse=True)
        times[f"{base}+{ORACLE}"] = [min(one) for one in zip(*(times[name] for name in fixed), strict=True)]
        for over in fixed:
            for name in [name for name in times if name not in fixed]:
                ratio, low, high = paired_speedup(times[over], times[name])
                row = {"method": name, "over": over, "is_best": over == fixed[0]}
                rows.append({**row, "ratio": ratio, "low": low, "high": high})
    return rows


def _groups(methods: Sequence[Described]) -> Mapping[str, list[Described]]:
    """Methods with a policy, by their family; those of a sweep are for figures."""
    groups: dict[str, list[Described]] = {}
    for method in methods:
        if "policy" in method.settings and not method.sizes:
            groups.setdefault(method.family, []).append(method)
    return groups
