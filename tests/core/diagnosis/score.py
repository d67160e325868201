"""How often the doctor is right over a folder of snapshots that say what is expected of it.

    python -m tests.core.diagnosis.score FOLDER|FILE

FOLDER holds a file for each, FILE (``.jsonl`` or ``.jsonl.xz``) a line for each: a snapshot with `expected`,
which has `cause`, and as far as it matters `also_accept`, `must_not`, `blame`, `retryable`. Printed are the
shares, each miss with what was said instead, and how well the confidence was meant. `must_not` lists the
causes that are forbidden as the first answer.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import Diagnosis, diagnose

TOLD = ("id", "source", "symptom", "expected")
"""What the doctor is not given."""


class Verdict(NamedTuple):
    name: str
    wanted: str
    found: Diagnosis
    code: bool
    retryable: bool
    blame: bool
    forbidden: bool
    others: tuple[str, ...]


def judge(name: str, sample: dict[str, Any]) -> Verdict:
    expected = sample["expected"]
    found = diagnose(read_snapshot({k: v for k, v in sample.items() if k not in TOLD}), thorough=True)
    top = found[0]
    right = top.code in (expected["cause"], *expected.get("also_accept", ()))
    return Verdict(
        name,
        expected["cause"],
        top,
        right,
        expected.get("retryable") in (None, top.retryable) or expected["cause"] in ("healthy",),
        names_the_same(expected.get("blame"), top.blame),
        top.code in expected.get("must_not", ()),
        tuple(d.code for d in found[1:]),
    )


def samples(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and snapshot of each."""
    if place.is_dir():
        for file in sorted(place.glob("*.json")):
            yield file.stem, json.loads(file.read_text())
        return
    opened = lzma.open if place.suffix == ".xz" else open
    with opened(place, "rt", encoding="utf-8") as lines:
        for line in lines:
            sample = json.loads(line)
            yield sample["id"], sample


def names_the_same(wanted: str | None, said: str | None) -> bool:
    """Whether what is blamed names what should be: one of its words that are names, or all of its words."""
    if wanted in (None, "", "-", "none"):
        return True
    words = re.findall(r"[\w.:/-]+", str(wanted).lower())
    names = [w for w in words if re.search(r"\d|-|\.", w)] or words
    return any(name.strip(":") in (said or "").lower() for name in names)


def main(folder: str) -> int:
    verdicts = [judge(name, sample) for name, sample in samples(Path(folder))]
    if not verdicts:
        print(f"{folder} holds no snapshots")
        return 2
    for what in ("code", "retryable", "blame"):
        right = sum(getattr(v, what) for v in verdicts)
        print(f"{what:<10} {right} of {len(verdicts)}  ({right / len(verdicts):.0%})")
    print(f"{'forbidden':<10} {sum(v.forbidden for v in verdicts)}")
    print()
    for v in verdicts:
        if not v.code:
            print(
                f"{v.name}{' FORBIDDEN' if v.forbidden else ''}: wanted {v.wanted}, said {v.found.code} "
                f"({v.found.confidence}); then "
                f"{', '.join(v.others) or '-'}"
            )
            print(f"    {v.found.summary}")
        elif not (v.retryable and v.blame):
            what = ", ".join(w for w in ("retryable", "blame") if not getattr(v, w))
            print(f"{v.name}: {v.found.code} with another {what}: {v.found.retryable}, {v.found.blame!r}")
    confused = Counter((v.wanted, v.found.code) for v in verdicts if not v.code)
    if confused:
        print("\nconfused:", "; ".join(f"{a} -> {b} x{n}" for (a, b), n in confused.most_common()))
    bins: dict[float, list[bool]] = defaultdict(list)
    for v in verdicts:
        bins[round(v.found.confidence, 1)].append(v.code)
    print("\nsaid with  right")
    for said, right_ones in sorted(bins.items()):
        print(f"{said:<10} {sum(right_ones)} of {len(right_ones)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else print(__doc__) or 2)  # type: ignore[func-returns-value]
