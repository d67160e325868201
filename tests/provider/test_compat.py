"""What the provider asks of Airflow in every version: names that moved, features that are absent, and what
the documentation says of both.
"""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time.xcom import XCom
from packaging.version import Version

import allaboard_provider
from allaboard_provider import compat

SOURCE = Path(allaboard_provider.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
OF_THE_DATABASE = ("plugin.py", "reconciler.py", "ui/database.py", "ui/app.py")
"""Modules that work where Airflow's database is: in the scheduler, the API server, a triggerer's main
process. The task SDK offers nothing for them.
"""
ALSO_OF_THE_SDK = ("airflow.sdk", "airflow.triggers.base", "airflow.providers")
"""Where an operator or a trigger may import from. Triggers have their base in the core alone."""

IMPORT_ALL = """
import pkgutil, warnings
warnings.filterwarnings("error", module=r"allaboard_provider")
import allaboard_provider
from importlib import import_module
for found in pkgutil.walk_packages(allaboard_provider.__path__, "allaboard_provider."):
    try:
        import_module(found.name)
    except ImportError as error:
        if "needs the retry policies" not in str(error):
            raise
print("imported")
"""


def test_no_module_of_ours_imports_what_airflow_deprecates() -> None:
    answer = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert answer.returncode == 0 and answer.stdout.splitlines()[-1] == "imported", answer.stderr[-3000:]


def imports_of(file: Path) -> list[str]:
    """The modules that a file imports from, in functions as well."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return found


def test_only_what_works_in_the_database_imports_airflows_core() -> None:
    wrong = [
        f"{file.relative_to(SOURCE)}: {module}"
        for file in SOURCE.rglob("*.py")
        if str(file.relative_to(SOURCE)) not in (*OF_THE_DATABASE, "compat.py")
        for module in imports_of(file)
        if module.split(".")[0] == "airflow" and not module.startswith(ALSO_OF_THE_SDK)
    ]
    assert wrong == []


MOVED = ("airflow.sdk.exceptions", "airflow.sdk.plugins_manager", "airflow.sdk.observability",
         "airflow.sdk.serde", "airflow.sdk.log", "airflow.sdk.configuration", "airflow.state")  # fmt: skip


def test_what_has_moved_is_imported_from_one_module() -> None:
    wrong = [
        f"{file.relative_to(SOURCE)}: {module}"
        for file in SOURCE.rglob("*.py")
        if file.name != "compat.py"
        for module in imports_of(file)
        if module.startswith(MOVED)
    ]
    assert wrong == []


def test_a_name_that_the_version_does_not_have_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="NoSuchName"):
        from allaboard_provider.compat import NoSuchName  # type: ignore[attr-defined]  # noqa: F401
    for name in ("conf", "AirflowPlugin", "TaskDeferralTimeout", "redact"):
        assert getattr(compat, name) is not None


def test_an_airflow_2_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "airflow" / "models").mkdir(parents=True)
    (tmp_path / "airflow" / "__init__.py").write_text("raise RuntimeError('it was imported')")
    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import allaboard_provider.operators"
    answer = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("ImportError: allaboard needs Airflow 3.1.8 or later") and "end of life" in last


# --- questions of a trigger
# ----------------------------------------------------------------------------------------------


def test_a_question_goes_on_when_the_trigger_that_asked_it_is_dropped() -> None:
    """Airflow 3.1 takes the answer for that of its next question otherwise, and its triggerer ends."""
    asked, may_answer, answered = threading.Event(), threading.Event(), threading.Event()

    def question() -> None:
        asked.set()
        assert may_answer.wait(10)
        answered.set()

    async def main() -> None:
        trigger = asyncio.create_task(compat.ask(question))
        assert await asyncio.to_thread(asked.wait, 10)
        trigger.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trigger
        may_answer.set()
        assert await asyncio.to_thread(answered.wait, 10)

    asyncio.run(main())


def test_a_question_from_a_thread_reaches_the_loop_of_the_triggerer() -> None:
    """The SDK's own questions run on that loop; on another one they would read from a pipe that is not
    theirs.
    """
    from asgiref.sync import async_to_sync

    async def loop_of() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def main() -> bool:
        return await compat.ask(lambda: async_to_sync(loop_of)()) is asyncio.get_running_loop()

    assert asyncio.run(main())


@pytest.mark.parametrize("awaits", [True, False])
def test_a_trigger_pushes_an_xcom_in_either_way(monkeypatch: pytest.MonkeyPatch, awaits: bool) -> None:
    pushed: list[Any] = []

    async def aset(key: str, value: Any, **task: Any) -> None:
        pushed.append((key, value, task))

    if awaits:
        monkeypatch.setattr(XCom, "aset", aset, raising=False)
    else:
        monkeypatch.delattr(XCom, "aset", raising=False)
        for kind in XCom.__mro__:
            if "aset" in vars(kind):
                monkeypatch.delattr(kind, "aset")
        monkeypatch.setattr(XCom, "set", lambda key, value, **task: pushed.append((key, value, task)))
    asyncio.run(compat.push_xcom("a", 1, dag_id="d"))
    assert pushed == [("a", 1, {"dag_id": "d"})]


def test_metrics_are_counted_timed_and_set_with_tags() -> None:
    stats = compat.stats()
    stats.incr("allaboard.tests", 1, tags={"a": "b"})
    stats.timing("allaboard.tests", 1.0, tags={"a": "b"})
    stats.gauge("allaboard.tests", 1.0, tags={"a": "b"})


# --- the table of the documentation
# --------------------------------------------------------------------------------------


def table() -> tuple[list[str], dict[str, list[str]]]:
    """The versions of the table in provider/README.md, and its rows by the name of the feature."""
    text = (ROOT / "provider" / "README.md").read_text().split("## Which Airflow", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = lines
    versions = [version.split()[0] for version in header[:-1]]
    return versions, {row[0]: row[1:] for row in rows}


def test_the_table_of_the_documentation_is_that_of_the_features() -> None:
    versions, rows = table()
    assert {name: row[-1] for name, row in rows.items()} == {
        feature.name: feature.without for feature in compat.FEATURES
    }
    here = Version(version("apache-airflow"))
    column = versions.index(f"{here.major}.{here.minor}")
    for feature in compat.FEATURES:
        assert rows[feature.name][column] == ("yes" if feature.is_there() else "no"), feature.name
