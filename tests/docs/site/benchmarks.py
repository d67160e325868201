"""The speed figures, from the raw seconds that `make bench ARGS="--json FILE"` wrote."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.docs.site.markdown import fenced, table
from tests.meta.source import ROOT

RAW = ROOT / "core/docs/benchmarks/figures.json"
HEAD = """\
# Benchmarks

Each figure stands beside its peers, measured in turns within one run; what counts are ratios. *Spread* is
(max - min) / median: a ratio is only worth something where the spread is small beside it. *Paired* is the
median of the ratios round by round.

{where}. Another machine: `make bench`; raw seconds: `make bench ARGS="--json figures.json"`.
"""
MISSING = """\
## What is not here

Saving and loading checkpoints, following 1,000 jobs, also as deferred tasks of a real triggerer, and
submitting them are measured by `make bench`, too, and take their time; figures of a quiet machine are not
kept here yet. Nothing has been measured with real GPUs on a cluster.
"""


def page() -> str:
    """Markdown: a table for each comparison, what we lose, the raw seconds."""
    raw = json.loads(RAW.read_text())
    where = (
        f"{raw['platform']}, {raw['cores']} cores, Python {raw['python']}, {raw['rounds']} rounds, "
        f"{raw['day']}, on a machine that others used at the same time"
    )
    lines = [HEAD.format(where=where)]
    for one in raw["tables"]:
        lines += [f"## {one['title']}", "", *_table(one)]
    lines += ["## Where we lose", "", *losses(raw["tables"]), ""]
    return "\n".join([*lines, MISSING, "## Raw seconds", "", *fenced(json.dumps(raw, indent=1), "json")])


def losses(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each of ours that took longer than one that is not, by more than a twentieth."""
    return [
        f"- {one['title']}: *{ours}* took {statistics.median(mine) / statistics.median(its):.2f} times "
        f"as long as *{peer}*."
        for one in tables
        for ours, mine in one["seconds"].items()
        if _is_ours(ours)
        for peer, its in one["seconds"].items()
        if not _is_ours(peer) and statistics.median(mine) > 1.05 * statistics.median(its)
    ]


def _is_ours(name: str) -> bool:
    return any(word in name for word in ("allaboard", "TrainingJob", "retrain_digits"))


def _table(one: Mapping[str, Any]) -> Iterator[str]:
    base = one["seconds"][one["against"]]
    yield f"Ratios are against *{one['against']}*; below 1 is quicker than it."
    yield ""
    yield from table(
        ("", "median", "least", "spread", "ratio", "paired"),
        [
            (
                name,
                f"{1000 * statistics.median(seconds):.1f} ms",
                f"{1000 * min(seconds):.1f} ms",
                f"{(max(seconds) - min(seconds)) / statistics.median(seconds):.0%}",
                f"{statistics.median(seconds) / statistics.median(base):.2f}",
                f"{statistics.median(a / b for a, b in zip(seconds, base, strict=True)):.2f}",
            )
            for name, seconds in one["seconds"].items()
        ],
    )
