"""How well `allaboard convert` does on manifests that users published: ``make score``.

The manifests are in `wild`; its README says where they are from.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Sequence

from allaboard.convert.manifests import Document, Outcome, convert, score
from allaboard.engines import ENGINES
from tests.core.convert.manifests import HERE, in_folder

SECOND = 67
"""The number of the first manifest that was looked at only after the code was written."""


def outcomes_of(found: Sequence[Document]) -> tuple[list[Outcome], list[str]]:
    """What became of each document, and the exceptions, of which there must be none."""
    outcomes, raised = [], []
    for text in dict.fromkeys(document.text for document in found):
        try:
            outcomes += convert([document for document in found if document.text == text])
        except Exception:
            raised.append(f"{text}: {traceback.format_exc(limit=-2)}")
    return outcomes, raised


def is_read(outcome: Outcome) -> bool:
    """Whether it is a job of a kind that this version turns into jobs."""
    kinds = {engine.KIND for engine in ENGINES.values()}
    return outcome.passed is None and outcome.source.value["kind"] in kinds


def number(outcome: Outcome) -> int:
    match = re.match(r"\d+", outcome.source.place)
    assert match is not None
    return int(match[0])


def told(outcomes: Sequence[Outcome], raised: Sequence[str], title: str) -> str:
    """The score in some lines."""
    read = [one for one in outcomes if is_read(one)]
    others = Counter(one.source.value["kind"] for one in outcomes if one.passed is None and not is_read(one))
    total = score(read)
    rate = 100 * total.converted / total.jobs if total.jobs else 0.0
    lines = [
        f"{title}: {len(outcomes)} documents, {len(raised)} exceptions",
        f"  {total.jobs} jobs: {total.converted} converted ({rate:.1f} %), {total.whole} without loss",
        f"  {total.templates} templates that nobody filled in, "
        f"{sum(bool(one.passed) for one in outcomes)} objects that are no jobs",
    ]
    lines += [f"  lost: {path} ({count})" for path, count in total.losses.items()]
    lines += [f"  not converted: {one.title}: {one.problems[0]}" for one in read if one.problems]
    lines += [f"  not turned into jobs by this version: {count} {kind}" for kind, count in others.items()]
    return "\n".join(lines)


def main() -> int:
    outcomes, raised = outcomes_of(in_folder("wild"))
    first = [one for one in outcomes if number(one) < SECOND]
    second = [one for one in outcomes if number(one) >= SECOND]
    print(told(first, [], "looked at while the code was written"))
    print(told(second, [], "looked at afterwards"))
    print(told(outcomes, raised, "all"))
    templates = sorted((HERE / "templates").glob("*"))
    print(f"not manifests, templates of Helm: {len(templates)}")
    for text in raised:
        print(text)
    return 1 if raised else 0


if __name__ == "__main__":
    sys.exit(main())
