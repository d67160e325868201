"""What holds for every test: it sees and touches nothing of the caller's; a cluster is asked for by name."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.junitxml import xml_key

ROOT = Path(__file__).resolve().parent.parent

# Settings of the caller that would change what is tested. The rest of the environment stays.
FOREIGN = (
    "ALLABOARD_",
    "AIRFLOW__",
    "_AIRFLOW",
    "AIRFLOW_",
    "KFP_",
    "AWS_",
    "PET_",
    "TORCHELASTIC_",
    "KUBERNETES_",
)
# The ranks of a training that the tests may themselves run in, and what makes every child start slowly.
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONDONTWRITEBYTECODE")

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)


def _own_environment() -> Path:
    """Homes and the pool of slots become this session's own; the folder that they lie in."""
    for name in [n for n in os.environ if n.startswith(FOREIGN) or n in NAMES]:
        del os.environ[name]
    own = Path(tempfile.mkdtemp(prefix="allaboard-tests-")).resolve()
    os.environ["ALLABOARD_HOME"] = str(own / "home")
    os.environ["ALLABOARD_POOL"] = str(own / "pool")
    os.environ["AIRFLOW_HOME"] = str(own / "airflow")
    # Servers of the tests are on this machine; a proxy must not be asked for them.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    return own


# At import, which comes before any other conftest's: Airflow reads its environment when it is imported.
OWN = _own_environment()


def pytest_unconfigure() -> None:
    shutil.rmtree(OWN, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--e2e", action="store_true", help="also run the tests that need a Kubernetes cluster")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    wanted = config.getoption("--e2e")
    for item in items:
        if item.get_closest_marker("e2e") is None:
            continue
        # Elsewhere the mark would skip, in silence, a test that needs no cluster.
        if ROOT / "tests" / "cluster" not in item.path.parents:
            raise pytest.UsageError(
                f"{item.nodeid}: the mark e2e is for tests/cluster, for tests that need one"
            )
        if not wanted:
            item.add_marker(pytest.mark.skip(reason="needs a Kubernetes cluster; say --e2e"))
    _keep_some_of_the_thorough(items, by_name=any("::" in argument for argument in config.args))
    yield
    # Of those that are left: what is not run makes no file a long one.
    if hasattr(config, "workerinput"):
        items.sort(key=_longest_file_first(items))


def _keep_some_of_the_thorough(items: Sequence[pytest.Item], *, by_name: bool) -> None:
    """``thorough(but=("disk",))``: all its cases but those whose id begins so. An id that no case has is an
    error, unless the caller chose cases by their names.
    """
    unused: dict[tuple[Path, str, str], bool] = {}
    for item in items:
        mark = item.get_closest_marker("thorough")
        if mark is None or "but" not in mark.kwargs or not isinstance(item, pytest.Function):
            continue
        for begin in mark.kwargs["but"]:
            kept = item.callspec.id.startswith(begin)
            key = item.path, item.originalname, begin
            unused[key] = unused.get(key, True) and not kept
            if kept and mark in item.own_markers:
                item.own_markers.remove(mark)
    lacking = [
        f"{path}::{name}: no case begins with {begin!r}" for (path, name, begin), no in unused.items() if no
    ]
    if lacking and not by_name:
        raise pytest.UsageError("; ".join(lacking))


LONGEST = (ROOT / "tests" / "longest.txt").read_text().split()
"""Files of more than ten seconds, the longest first. Where it is out of date, the tests only end later."""


def _longest_file_first(items: Sequence[pytest.Item]) -> Callable[[pytest.Item], tuple[int, int, int, int]]:
    """For workers of pytest-xdist, which take file after file: what takes minutes must not begin last."""
    place = {ROOT / name: number for number, name in enumerate(LONGEST)}
    live, slow = (
        Counter(item.path for item in items if item.get_closest_marker(mark))
        for mark in ("airflow_live", "slow")
    )
    all_of_it = Counter(item.path for item in items)
    return lambda item: (
        -live[item.path],
        place.get(item.path, len(place)),
        -slow[item.path],
        -all_of_it[item.path],
    )


def pytest_collection_finish() -> None:
    """The million objects that the collected tests are stay: no later garbage collection looks through them,
    which takes a second each time."""
    gc.collect()
    gc.freeze()


_seen = {"left out": 0, "tried again": 0}


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _seen["left out"] += len(items)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seen["tried again"] += report.outcome == "rerun"  # type: ignore[comparison-overlap]  # of pytest-rerunfailures


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker of pytest-xdist counted. All collect, and leave out, the same."""
    _seen["left out"] = max(_seen["left out"], getattr(node, "workeroutput", {}).get("left out", 0))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tells what a green line would hide: for the closing line of tests/run.py, which reads the report."""
    if (worker := getattr(session.config, "workeroutput", None)) is not None:
        worker["left out"] = _seen["left out"]
    elif (report := session.config.stash.get(xml_key, None)) is not None:
        for name, count in _seen.items():
            report.add_global_property(name, count)


@pytest.fixture(autouse=True)
def _leaves_this_process_as_it_was() -> Iterator[None]:
    """Fails the test that moved all later ones to another folder, left them its handler of a signal, or made
    pytest the parent of every orphan: such a pytest collects the dead of all later tests as zombies, and
    shows them as its children."""
    before = (Path.cwd(), _adopts_orphans(), _handlers())
    yield
    after = (Path.cwd(), _adopts_orphans(), _handlers())
    if after != before:
        os.chdir(before[0])
        if sys.platform == "linux":
            _libc.prctl(PR_SET_CHILD_SUBREAPER, int(before[1]), 0, 0, 0)
        for number, handler in before[2].items():
            signal.signal(number, handler)
        pytest.fail(f"(folder, adopts orphans, handlers of signals) was {before} and is now {after}")


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def _adopts_orphans() -> bool:
    if sys.platform != "linux":
        return False
    answer = ctypes.c_int()
    _libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT
