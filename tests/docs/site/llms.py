"""llms.txt: the pages of the site for whoever reads them by machine, each with its first sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping

HEAD = """\
# allaboard

> Schedules distributed training: starts all of a gang or nothing, follows it, says why it waits or failed,
> hands back the best checkpoint, evaluates and promotes it; from Airflow, Kubeflow Pipelines, the command
> line or Python, with one job file.

The commands answer `--json` with one object on stdout. `allaboard explain FIELD`, `allaboard schema` and
`allaboard doctor --causes` say what the pages below say.
"""
_SECTIONS = (("Start", ""), ("How-to", "how-to/"), ("Migration", "migration/"), ("Reference", "reference/"))


def text(pages: Mapping[str, str]) -> str:
    """``pages``: path -> Markdown. Pages that show files of the repository are left out."""
    lines = [HEAD]
    found: dict[str, list[str]] = {}
    left = {path: page for path, page in sorted(pages.items()) if not path.startswith("files/")}
    for title, folder in reversed(_SECTIONS):  # the first takes what no other has
        within = {path: left.pop(path) for path in [*left] if path.startswith(folder)}
        rows = [f"- [{_title(page)}]({path}): {_first_sentence(page)}" for path, page in within.items()]
        found[title] = [f"## {title}", "", *rows, ""] if rows else []
    lines += [line for title, _ in _SECTIONS for line in found[title]]
    return "\n".join(lines)


def _title(page: str) -> str:
    found = re.search(r"^# (.+)$", page, re.MULTILINE)
    return found[1].replace("`", "") if found else "Page"


def _first_sentence(page: str) -> str:
    """Of the first paragraph that is prose."""
    body = re.sub(r"^(`{3,}).*?^\1$", "", page, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", body):
        if paragraph.strip() and paragraph.strip()[0] not in "#|!<>-":
            flat = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.!?])\s(?=[A-Z`])", flat)[0]
    return ""
