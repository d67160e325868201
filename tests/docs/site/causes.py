"""One page for each code of the doctor: what it means, how it looks, what the doctor says, what to do."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import diagnose
from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.finding import Diagnosis
from allaboard.diagnosis.page import ROOMS
from allaboard.diagnosis.rule import Cause
from tests.core.diagnosis.cases import CASES
from tests.core.diagnosis.sayings import SAYINGS, scene
from tests.docs.site.markdown import contents, fenced, table

FOLDER = "reference/causes"


def pages() -> dict[str, str]:
    """Path -> page: an index, and one page for each code."""
    causes = [one.cause for one in all_rules().values()]
    said = _said()
    made = {f"{FOLDER}/{cause.code}.md": "\n".join(_page(cause, said.get(cause.code))) for cause in causes}
    return {f"{FOLDER}/index.md": "\n".join(_index(causes)), **made}


def _said() -> Mapping[str, Diagnosis]:
    """Code -> what the doctor says of the first case in the tests that it calls so."""
    found: dict[str, Diagnosis] = {}
    cases = [(case.code, case.snapshot) for case in CASES]
    for code, snapshot in (*cases, *((one["code"], scene(one)) for one in SAYINGS)):
        if code not in found:
            first, *_ = diagnose(read_snapshot(copy.deepcopy(snapshot)), thorough=True)
            if first.code == code:
                found[code] = first
    return found


def _index(causes: list[Cause]) -> Iterator[str]:
    yield "# What the doctor says"
    yield ""
    yield "`allaboard doctor RUN` says the first cause in time, with what shows it, whom to look at, and"
    yield "what to do. The codes stay: alerts may match them. They stand in `status --json`, in the exception"
    yield "of an Airflow task and in the error of a KFP step, too. **Again** says whether the same job,"
    yield "unchanged, may succeed later; a finding may know better."
    yield ""
    for room, title in ROOMS.items():
        yield f"## {title}"
        yield ""
        rows = [
            (f"[`{cause.code}`]({cause.code}.md)", cause.title, again(cause))
            for cause in causes
            if cause.room == room
        ]
        yield from table(("Code", "Says", "Again"), rows)
    yield from contents(cause.code for cause in causes)


def again(cause: Cause) -> str:
    """Whether the same job may succeed later."""
    return "-" if cause.code == "healthy" else "yes" if cause.retryable else "no"


def _page(cause: Cause, said: Diagnosis | None) -> Iterator[str]:
    yield f"# {cause.code}"
    yield ""
    yield f"*{ROOMS[cause.room]}.* **{cause.title}.**"
    yield ""
    yield "## What it means"
    yield ""
    yield cause.means
    yield ""
    yield "## How it looks"
    yield ""
    yield cause.looks
    yield ""
    if said is not None:
        yield "Of one of the cases in its tests the doctor says:"
        yield ""
        yield from fenced("\n".join(_spoken(said)))
    yield "## What to do"
    yield ""
    yield f"{cause.fix[:1].upper()}{cause.fix[1:]}."
    yield ""
    if cause.fix_for_good:
        yield f"Where waiting does not help: {cause.fix_for_good}."
        yield ""
    yield from table(
        ("Code", "Read from", "The same job again"),
        [(f"`{cause.code}`", ", ".join(cause.needs) or "nothing", again(cause))],
    )
    yield "[All codes](index.md)"
    yield ""


def _spoken(said: Diagnosis) -> Iterator[str]:
    yield f"{said.code}  {said.summary}"
    for evidence in said.evidence:
        yield f"  {evidence.object}  {evidence.field}:  {evidence.text}"
    if said.blame:
        yield f"  look at  {said.blame}"
    yield f"  do       {said.fix}"
