"""The environment variables that allaboard reads or sets: their names from the code, their meaning from
environment.toml, which a test holds complete.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.docs.site.markdown import table
from tests.meta.source import DISTS

MEANINGS = Path(__file__).parent / "environment.toml"
HEAD = """\
# Environment variables

What allaboard reads and what it sets. A job's own `environment` comes beside them; what the operator of a
kind injects (`MASTER_ADDR`, `TF_CONFIG`, ...) is told [by kind](../engines.md).
"""


def page() -> str:
    """Markdown: a table for each who reads or sets them."""
    lines = [HEAD]
    for room in tomllib.loads(MEANINGS.read_text()).values():
        names = {name: text for name, text in room.items() if name.isupper()}
        lines += [f"## {room['title']}", "", room["who"], ""]
        lines += table(("Variable", "Means"), [(f"`{name}`", text) for name, text in names.items()])
    return "\n".join(lines)


def named() -> set[str]:
    """The variables that the code names."""
    return {
        name
        for dist in DISTS
        for path in dist.source.rglob("*.py")
        for name in re.findall(r"\bALLABOARD_[A-Z_]*[A-Z]\b", path.read_text())
    }


def told() -> set[str]:
    """The variables that the page tells of."""
    rooms = tomllib.loads(MEANINGS.read_text()).values()
    return {name for room in rooms for name in room if name.isupper()}
