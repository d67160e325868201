"""The code as data: which distributions, modules and files there are; found, never listed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Dist:
    """One distribution: its folder, its name on the package index, what is imported, what it adapts to."""

    folder: Path
    name: str
    package: str
    framework: str | None = None

    @property
    def source(self) -> Path:
        return self.folder / "src" / self.package

    @property
    def here(self) -> bool:
        """Whether this environment can import it."""
        return self.framework is None or find_spec(self.framework) is not None


CORE = Dist(ROOT / "core", "allaboard", "allaboard")
PROVIDER = Dist(ROOT / "provider", "airflow-provider-allaboard", "allaboard_provider", "airflow")
COMPONENTS = Dist(ROOT / "kfp_components", "kfp-allaboard", "allaboard_kfp", "kfp")
DISTS = (CORE, PROVIDER, COMPONENTS)
COPIED = CORE.source / "cli" / "start" / "spirals"
"""Scripts that a command puts into a folder of the user's, where they run: no modules of a distribution."""


def modules(dist: Dist) -> list[str]:
    """Every module of a distribution that can be imported; `__main__` is run, not imported."""
    found = []
    for path in sorted(dist.source.rglob("*.py")):
        if path.parent == COPIED:
            continue
        parts = [dist.package, *path.relative_to(dist.source).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        if parts[-1] != "__main__":
            found.append(".".join(parts))
    return found


def path_of(module: str) -> Path:
    dist = next(d for d in DISTS if d.package == module.partition(".")[0])
    path = dist.source.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text())


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, without those for type checkers alone."""
    for statement in tree.body:
        if isinstance(statement, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(statement.test):
                yield from statement.body
                yield from statement.orelse
        elif isinstance(statement, ast.Try):
            yield from statement.body
        else:
            yield statement


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the repository: what git knows or would add, else what lies beside the environments."""
    answer = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if answer.returncode == 0:
        names = answer.stdout.decode().split("\0")
        return tuple(sorted(ROOT / name for name in names if name and (ROOT / name).is_file()))
    # An unpacked archive without its history.
    return tuple(
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file() and not {".git", ".venv", "__pycache__"} & set(path.relative_to(ROOT).parts)
    )


def python(code: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """What a fresh interpreter prints for this code. Fails with its stderr."""
    answer = subprocess.run(
        [sys.executable, *options, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
