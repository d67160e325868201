"""Builds:

once, by one process, found again without Go; and a reason for a person where there is none to be had.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import build, components
from tests.cluster.build import Build, Unavailable, Work, ensure, why_not
from tests.cluster.components.kubernetes import KUBECTL, RELEASES

TOOL = Build(
    "tool", "example.org/tool", (("tool", "example.org/tool/cmd"),), files=("crds/*.yaml",), minutes=1
)

# Stands in for Go: builds files that name themselves, knows one module, and counts how often it was asked to
# build.
GO = """#!/bin/sh
case $1 in
build)
    echo built >> "$COUNT"
    sleep "${GO_TAKES:-0}"
    if [ -n "$GO_FAILS" ]; then echo "go: downloading lots" >&2; echo "$GO_FAILS" >&2; exit 1; fi
    while [ "$1" != -o ]; do shift; done
    echo "binary" > "$2" ;;
list) echo "$MODULE" ;;
esac
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a stand-in for Go, an empty cache and one module; the file in which builds are
    counted."""
    (tmp_path / "go" / "tool").mkdir(parents=True)
    (tmp_path / "go" / "tool" / "go.mod").write_text("module x\n\nrequire example.org/tool v1.2.3\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "go").write_text(GO)
    (tmp_path / "bin" / "go").chmod(0o755)
    (tmp_path / "module" / "crds").mkdir(parents=True)
    (tmp_path / "module" / "crds" / "a.yaml").write_text("kind: A\n---\nkind: B\n---\n")
    monkeypatch.setattr(build, "GO", tmp_path / "go")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MODULE", str(tmp_path / "module"))
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    return tmp_path / "count"


def silent(_line: str) -> None: ...


def test_a_build_is_made_once_and_then_found_without_go(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(TOOL) == "tool v1.2.3 is not built here; `make cluster-up` does that"
    ensure(TOOL, silent)
    monkeypatch.setenv("PATH", "")
    ensure(TOOL, silent)
    assert why_not(TOOL) is None
    assert Path(TOOL.binary("tool")).read_text() == "binary\n"
    assert TOOL.objects("crds/*.yaml") == [{"kind": "A"}, {"kind": "B"}]
    assert go.read_text() == "built\n"


def test_whatever_the_result_depends_on_makes_another_build(go: Path) -> None:
    first = TOOL.hash
    assert TOOL.hash == first
    (TOOL.folder / "go.sum").write_text("example.org/tool v1.2.3 h1:x\n")
    assert TOOL.hash != first
    assert len({TOOL.hash, Build("tool", TOOL.module, TOOL.packages).hash, first}) == 3


def test_several_processes_build_once(go: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_TAKES", "0.5")
    program = f"""
from pathlib import Path
from tests.cluster import build
from tests.cluster.test_build import TOOL
build.GO = Path({str(build.GO)!r})
build.ensure(TOOL)
"""
    processes = [subprocess.Popen([sys.executable, "-c", program], cwd=root) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert go.read_text() == "built\n"


def test_a_failed_build_says_why_and_leaves_nothing_half_done(
    go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_FAILS", "proxy.golang.org: 403 Forbidden")
    with pytest.raises(
        Unavailable, match=r"tool v1.2.3: `go build` failed:\n    proxy.golang.org: 403 Forbidden$"
    ):
        ensure(TOOL, silent)
    assert "403 Forbidden" in str(why_not(TOOL))
    assert [path.name for path in build.cache().iterdir() if path.is_dir()] == []
    monkeypatch.delenv("GO_FAILS")
    ensure(TOOL, silent)
    assert why_not(TOOL) is None


def test_without_go_there_is_a_reason(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="there is none on PATH"):
        ensure(TOOL, silent)


@pytest.mark.parametrize("asked", [lambda: [], lambda: list(components.known())], ids=["none", "all"])
def test_components_come_after_what_they_need(asked: Callable[[], list[str]]) -> None:
    seen: list[str] = []
    for component in components.chosen(asked()):
        assert set(component.needs) <= set(seen)
        seen.append(component.name)
    assert seen[:2] == ["etcd", "kube-apiserver"]


def test_every_module_is_pinned_and_every_pin_is_used() -> None:
    built = {each.name: each for each in (*components.builds(components.known().values()), KUBECTL)}
    releases = {release.folder for release in RELEASES.values()}
    assert {path.name for path in build.GO.iterdir()} == {*built} | releases
    for each in built.values():
        assert each.version != "v0", each.name
        text = (each.folder / "go.mod").read_text()
        assert [package for _, package in each.packages if package not in text.partition("require")[0]] == []
    assert KUBECTL.version == built[RELEASES["1.37"].folder].version


def test_an_unknown_component_is_answered_with_the_known() -> None:
    with pytest.raises(LookupError, match="no component volcanoo; there are etcd, kube-apiserver"):
        components.chosen(["volcanoo"])


def test_what_is_done_and_left_is_counted_over_all_that_is_built(go: Path) -> None:
    for name in ("pair", "there"):
        (build.GO / name).mkdir()
        (build.GO / name / "go.mod").write_text("module x\n\nrequire example.org/tool v1.2.3\n")
    pair = Build("pair", "example.org/tool", (("left", "x/left"), ("right", "x/right")), minutes=2)
    there = Build("there", "example.org/tool", (("there", "x/there"),))
    ensure(there, silent)
    lines: list[str] = []
    work = Work([there, TOOL, pair])
    assert work.plan == "3 programs to build, of tool, pair: some 3 minutes from a cold cache on 2 cores"
    for each in (there, TOOL, pair):
        ensure(each, lines.append, work)
    begun = [line.partition(": ")[2] for line in lines if "building" in line]
    assert [line.partition(" in ")[0] for line in begun] == [
        "building tool; 0 of 3 programs built",
        "building left; 1 of 3 programs built",
        "building right; 2 of 3 programs built",
    ]
    assert begun[1].endswith("; left: left, right")
    assert str(work).startswith("3 of 3 programs built in") and "left" not in str(work)
    assert Work([there, TOOL, pair]).plan is None


@pytest.mark.parametrize("background", [True, False])
def test_a_build_that_somebody_waits_for_has_its_full_share(
    go: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    before = os.nice(0)
    (go.parent / "bin" / "go").write_text(GO.replace("build)\n", 'build)\n    nice > "$COUNT.nice"\n'))
    ensure(TOOL, silent, Work([TOOL], background=background))
    assert int(Path(f"{go}.nice").read_text()) == (19 if background else before)
