"""The browser code in the wheel is what its sources build, and needs nothing but Airflow's React."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "provider/ui"
BUNDLE = SOURCES.parent / "src/allaboard_provider/ui/bundle.js"
LARGEST = 64 << 10

npm, node = shutil.which("npm"), shutil.which("node")


@pytest.fixture(scope="module")
def esbuild() -> Path:
    """The one of package-lock.json. It is installed where somebody builds (`make ui`), and in CI."""
    program = SOURCES / "node_modules/.bin/esbuild"
    if not program.exists() and npm and os.environ.get("CI"):
        subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=SOURCES, check=True, timeout=250)
    if not program.exists():
        pytest.skip("esbuild is not installed; make ui")
    return program


def test_the_bundle_is_what_its_sources_build(esbuild: Path, tmp_path: Path) -> None:
    build = json.loads((SOURCES / "package.json").read_text())["scripts"]["build"].split()
    assert build[0] == "esbuild" and build[-1].startswith("--outfile=")
    command = [str(esbuild), *build[1:-1], f"--outfile={tmp_path / 'bundle.js'}"]
    subprocess.run(command, cwd=SOURCES, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "bundle.js").read_text() == BUNDLE.read_text(), "run make ui, and commit the bundle"


def test_the_bundle_is_small_and_loads_nothing() -> None:
    code = BUNDLE.read_text()
    assert len(code) < LARGEST
    assert re.findall(r"https?://[^\s\"'`]+", code) == []
    assert not re.search(r"\bimport\b\s*[\"'{(]|\beval\(|innerHTML|dangerouslySetInnerHTML", code)
    assert "globalThis.React" in code


def test_the_version_of_the_tool_is_pinned() -> None:
    wanted = json.loads((SOURCES / "package.json").read_text())["devDependencies"]
    locked = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    assert all(locked[f"node_modules/{name}"]["version"] == version for name, version in wanted.items())


@pytest.mark.skipif(node is None, reason="no Node.js is installed")
def test_what_the_tabs_draw_from_values() -> None:
    assert node is not None
    done = subprocess.run([node, "--test", *map(str, sorted(SOURCES.glob("test/*.test.js")))],
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
