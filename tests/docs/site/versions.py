"""Which engine goes with which gang scheduler, and which versions the tests run with."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from allaboard.cli import app
from tests.docs.site.markdown import fenced, table
from tests.meta.source import DISTS, ROOT

MATRIX = """\
# Engines and gang schedulers

Which kind of job goes with which gang scheduler, decided by what both say of themselves: what
`allaboard engines --matrix` prints.
"""
VERSIONS = """\
# What it runs with

Wheels carry ranges; the tests run with the versions of two locks, one for Airflow's environment and one for
KFP's, because their `kubernetes` clients exclude each other.
"""
COMPONENTS = ROOT / "core/src/allaboard/backends/kubernetes/discovery/guides.toml"


def matrix() -> str:
    """Markdown: the matrix as it is printed."""
    said = CliRunner().invoke(app, ["engines", "--matrix"], standalone_mode=False, catch_exceptions=False)
    return "\n".join([MATRIX, *fenced(said.stdout)])


def compatibility() -> str:
    """Markdown: what each distribution needs, and what its tests run with."""
    airflow, kfp = (locked(ROOT / "tests" / f"requirements-{name}.lock") for name in ("airflow", "kfp"))
    lines = [VERSIONS]
    for dist in DISTS:
        about = tomllib.loads((dist.folder / "pyproject.toml").read_text())["project"]
        extras: Mapping[str, list[str]] = about.get("optional-dependencies", {})
        needs = [("", need) for need in about["dependencies"]]
        needs += [(extra, need) for extra, wanted in extras.items() for need in wanted]
        lines += [f"## {dist.name}", "", f"Python {about['requires-python'].replace('>=', '')} or later.", ""]
        lines += table(
            ("Extra", "Needs", "Tests with Airflow", "Tests with KFP"),
            [
                (extra and f"`{extra}`", f"`{need}`", airflow.get(_name(need), ""), kfp.get(_name(need), ""))
                for extra, need in needs
            ],
        )
    lines += [
        "## Components of clusters",
        "",
        "The releases whose installation `allaboard cluster` prints.",
        "",
    ]
    guides = tomllib.loads(COMPONENTS.read_text())
    lines += table(
        ("Component", "Release", "Its sources were read"),
        [
            (f"`{name}`", str(guide["version"]), str(guide["checked"]))
            for name, guide in guides.items()
            if isinstance(guide, dict)
        ],
    )
    return "\n".join(lines)


def locked(lock: Path) -> dict[str, str]:
    """Package -> its version. A package that a lock has in several versions, one per Python, has the last."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def _name(need: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", need)
    return found[0].lower().replace("_", "-") if found else need
