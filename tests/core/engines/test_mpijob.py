"""MPIJob in its two versions: what is sent, what the operator injects, who decides, and what is read of it.

Values and statuses are those of the MPI Operator 0.7.0 and of the Training Operator 1.9.4, whose controllers
tests/cluster/test_engines.py asks.
"""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.checking.job import check, require_valid
from allaboard.engines import BY_FRAMEWORK, ENGINES, engine_of, engine_of_kind, engine_of_object
from allaboard.engines.base import Address, Counts
from allaboard.errors import BadInput
from allaboard.inside.context import context, ranks
from allaboard.runs.layout import Layout, allaboard_environment, lay_out
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.text.names import attempt_name, run_name
from tests.core.backends.kubernetes.golden import made

V2, V1 = ENGINES["mpijob"], ENGINES["mpijob-v1"]
BOTH = pytest.mark.parametrize("engine", ["mpijob", "mpijob-v1"])
COMMAND = ["mpirun", "python", "train.py"]


def an_mpijob(engine: str = "mpijob", **fields: Any) -> Layout:
    job = require_valid(a_job(framework="mpi", engine=engine, **{"command": COMMAND, **fields}))
    return lay_out(job, engine_of(job), "digits-1")


def sent(engine: str = "mpijob", **fields: Any) -> dict[str, Any]:
    rendered = made(framework="mpi", engine=engine, **{"command": COMMAND, **fields})
    spec: dict[str, Any] = rendered.job["spec"]
    return spec


def said(**fields: Any) -> dict[str, str]:
    return {p.path: p.message for p in check(a_job(framework="mpi", **{"command": COMMAND, **fields}))}


# Who is who.


def test_a_kind_of_two_versions_is_two_engines() -> None:
    assert BY_FRAMEWORK["mpi"] == (V2, V1, ENGINES["trainjob"], ENGINES["jobset"])
    for engine in (V2, V1):
        assert engine_of_object({"kind": "MPIJob", "apiVersion": engine.API_VERSION}) is engine
    assert engine_of_kind("kubeflow.org/v1/MPIJob") is V1 and engine_of_kind("MPIJob") is V2
    with pytest.raises(BadInput, match="may be several; write kubeflow"):
        engine_of_kind("mpijobs")
    assert (V2.OPERATOR.id, V1.OPERATOR.id) == ("mpi-operator", "training-operator")


@BOTH
def test_so_many_workers_have_a_launcher_beside_them(engine: str) -> None:
    layout = an_mpijob(engine, workers=3)
    assert [m.name for m in layout.members] == ["launcher-0", "worker-0", "worker-1", "worker-2"]
    launcher, worker = layout.groups
    assert launcher.command == tuple(COMMAND) and worker.command == ()


@BOTH
def test_a_group_may_have_a_command_of_its_own(engine: str) -> None:
    groups = {"launcher": {"command": ["mpirun", "x"]}, "worker": {"replicas": 2, "command": ["idle"]}}
    layout = an_mpijob(engine, workers=None, command=None, groups=groups)
    assert [group.command for group in layout.groups] == [("mpirun", "x"), ("idle",)]
    problems = check({"name": "j", "framework": "mpi", "engine": engine, "groups": {"launcher": 1}})
    assert "command" in {p.path for p in problems if p.severity == "error"}, "the launcher has none"


def test_gpus_are_those_of_the_workers_and_of_a_launcher_that_works() -> None:
    def gpus(**fields: Any) -> list[int]:
        return [group.needs.gpu for group in an_mpijob(resources={"gpu": 2, "cpu": 1}, **fields).groups]

    assert gpus() == [0, 2]
    assert gpus(workers=None, groups={"launcher": {"environment": {"A": "1"}}, "worker": 1}) == [0, 2]
    assert gpus(workers=None, groups={"launcher": {"resources": {"gpu": 1}}, "worker": 1}) == [1, 2]
    assert gpus(engine_spec={"runLauncherAsWorker": True}) == [2, 2]
    assert an_mpijob(resources={"gpu": 2, "cpu": 1}).groups[0].needs.cpu == 1


# What is sent.


@BOTH
@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        ({}, 1), ({"resources": {"gpu": 4}}, 4), ({"processes_per_member": "auto"}, 1),
        ({"processes_per_member": 8, "resources": {"gpu": 4}}, 8),
    ],
)  # fmt: skip
def test_slots(engine: str, fields: dict[str, Any], slots: int) -> None:
    assert sent(engine, **fields)["slotsPerWorker"] == slots


@BOTH
def test_workers_that_wait_have_no_command(engine: str) -> None:
    specs = sent(engine)["mpiReplicaSpecs"]
    (launcher,), (worker,) = (specs[r]["template"]["spec"]["containers"] for r in ("Launcher", "Worker"))
    assert launcher["command"] == COMMAND and "command" not in worker


@pytest.mark.parametrize(("restart", "limit"), [("never", 0), ("on_failure", 5), (None, 5)])
def test_a_job_that_never_restarts_has_a_limit_of_none(restart: str | None, limit: int) -> None:
    """Its launcher is a batch Job, which makes new pods for those that failed under Never."""
    policy = {"backoff_limit": 5, **({"restart": restart} if restart else {})}
    spec = sent(policy=policy)
    assert spec["runPolicy"]["backoffLimit"] == limit
    words = {role["restartPolicy"] for role in spec["mpiReplicaSpecs"].values()}
    assert words == {"Never" if restart == "never" else "OnFailure"}
    assert sent("mpijob-v1", policy=policy)["runPolicy"]["backoffLimit"] == 5


def test_what_the_operator_alone_knows_is_said_to_it_alone() -> None:
    own = {
        "mpiImplementation": "Intel",
        "runLauncherAsWorker": True,
        "sshAuthMountPath": "/home/mpiuser/.ssh",
    }
    spec = sent(engine_spec=own)
    assert spec == {**spec, **own}
    assert sent("mpijob-v1", engine_spec={"mainContainer": "mpi"})["mainContainer"] == "mpi"


def test_workers_whose_label_counts_the_launcher_are_told_no_index() -> None:
    def variables(**fields: Any) -> set[str]:
        (worker,) = sent(**fields)["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        return {variable["name"] for variable in worker["env"]}

    assert {"ALLABOARD_MEMBER", "ALLABOARD_INDEX"} <= variables()
    works = variables(engine_spec={"runLauncherAsWorker": True})
    assert "ALLABOARD_RUN" in works and not works & {"ALLABOARD_MEMBER", "ALLABOARD_INDEX"}


@BOTH
def test_derived_names_fit(engine: str) -> None:
    longest = attempt_name(run_name("a" * 40, "key"), 12, 34)
    assert len(longest) <= 50
    assert len(ENGINES[engine].pod_name(longest, "worker-9999")) <= 63
    assert len(ENGINES[engine].pod_name(longest, "launcher-0")) <= 63
    assert len(f"{longest}-launcher") <= 63


# What the operator injects.


def environment(layout: Layout, member: int = 0, *, on_one_machine: bool = False) -> dict[str, str]:
    place = {} if on_one_machine else {m.name: Address(f"{m.name}.digits", 22) for m in layout.members}
    return ENGINES[layout.engine].environment(layout, layout.members[member], place)


def test_the_launcher_is_told_the_hostfile_in_the_words_of_its_implementation() -> None:
    assert environment(an_mpijob(processes_per_member=2)) == {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": "2",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }
    assert environment(an_mpijob(), 1) == {"K_MPI_JOB_ROLE": "worker"}
    intel = environment(an_mpijob(engine_spec={"mpiImplementation": "Intel", "runLauncherAsWorker": True}))
    assert intel["I_MPI_PERHOST"] == "1" and "NVIDIA_VISIBLE_DEVICES" not in intel
    two = an_mpijob(engine_spec={"mpiImplementation": "Intel"}, processes_per_member=2)
    assert environment(two)["I_MPI_PERHOST"] == "2"
    assert environment(two, on_one_machine=True)["I_MPI_PERHOST"] == "4"
    assert environment(an_mpijob(engine_spec={"mpiImplementation": "MPICH"})).keys() >= {"HYDRA_HOST_FILE"}


def test_the_launcher_of_v1_starts_ranks_by_kubectl() -> None:
    told = environment(an_mpijob("mpijob-v1", resources={"gpu": 1}))
    assert told == {
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": "/etc/mpi/kubexec.sh",
    }
    own = environment(an_mpijob("mpijob-v1", environment={"I_MPI_HYDRA_BOOTSTRAP": "ssh"}))
    assert "I_MPI_HYDRA_BOOTSTRAP" not in own
    assert environment(an_mpijob("mpijob-v1"), 1) == {}


@pytest.mark.parametrize(
    ("engine", "fields", "text"),
    [
        ("mpijob", {}, "h1 slots=3\nh2 slots=3\n"),
        ("mpijob", {"engine_spec": {"runLauncherAsWorker": True}}, "h0 slots=3\nh1 slots=3\nh2 slots=3\n"),
        ("mpijob", {"engine_spec": {"mpiImplementation": "MPICH"}}, "h1:3\nh2:3\n"),
        ("mpijob", {"engine_spec": {"mpiImplementation": "Intel"}}, "h1:3\nh2:3\n"),
        ("mpijob-v1", {}, "h1 slots=3\nh2 slots=3\n"),
        (
            "mpijob-v1",
            {"workers": None, "groups": {"launcher": {"resources": {"gpu": 1}}, "worker": 2}},
            "h0 slots=3\nh1 slots=3\nh2 slots=3\n",
        ),
    ],
)
def test_the_hostfile(engine: str, fields: dict[str, Any], text: str) -> None:
    layout = an_mpijob(engine, processes_per_member=3, **fields)
    hosts = {member.name: f"h{member.rank}" for member in layout.members}
    assert ENGINES[engine].files(layout, hosts) == {"/etc/mpi/hostfile": text}


def test_slots_of_members_on_one_host_are_one_line() -> None:
    """mpirun refuses two of one host."""
    layout = an_mpijob(workers=3, processes_per_member=2)
    assert V2.files(layout, dict.fromkeys((m.name for m in layout.members), "localhost")) == {
        "/etc/mpi/hostfile": "localhost slots=6\n"
    }


# Ranks are those of mpirun.


@pytest.mark.parametrize(
    "told",
    [
        {
            "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "PMI_RANK": "0", "PMI_SIZE": "9",
        },
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"},
    ],
    ids=["Open MPI", "MPICH and Intel MPI"],
)  # fmt: skip
def test_a_process_of_mpirun_knows_its_rank(told: dict[str, str]) -> None:
    layout = an_mpijob()
    launcher = allaboard_environment(layout, layout.members[0])
    here = context({**launcher, **told})
    assert (here.rank, here.world_size, here.local_rank, here.member) == (3, 4, 1, "launcher-0")
    assert ranks({**told, "RANK": "1", "WORLD_SIZE": "2"}) == (1, 2), "who sets these has decided"
    tensorflow = {"ALLABOARD_GROUPS": "worker:2", "ALLABOARD_MEMBER": "worker-1"}
    assert ranks({**tensorflow, **told}) == (3, 4)


def test_members_that_are_no_ranks_stand_alone() -> None:
    layout = an_mpijob()
    assert [ranks(allaboard_environment(layout, m)) for m in layout.members] == [(0, 1)] * 3


def test_ranks_that_cannot_be_are_named_by_their_variables() -> None:
    with pytest.raises(BadInput, match="OMPI_COMM_WORLD_RANK is 4 and OMPI_COMM_WORLD_SIZE 4"):
        ranks({"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "4"})


# Who decides.


@BOTH
def test_the_launcher_decides(engine: str) -> None:
    def judged(launcher: Counts, workers: Counts) -> tuple[bool, bool]:
        verdict = ENGINES[engine].judge(an_mpijob(engine), {"launcher": launcher, "worker": workers})
        return verdict.running, verdict.succeeded

    assert judged(Counts(1, active=1), Counts(2, active=2)) == (True, False)
    assert judged(Counts(1, succeeded=1), Counts(2, active=2))[1]
    assert not judged(Counts(1, active=1), Counts(2, succeeded=2))[1]
    runs_early = engine == "mpijob-v1"  # the MPI Operator waits for its workers with that word
    assert judged(Counts(1, active=1), Counts(2, active=1))[0] is runs_early


# What is read.


def a_pod(name: str, phase: str = "Running", created: int = 1, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels, "creationTimestamp": f"2026-01-01T00:00:0{created}Z"}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}


def of_role(role: str) -> dict[str, str]:
    return {"training.kubeflow.org/job-role": role}


def an_object(*conditions: tuple[str, str, str], **status: Any) -> dict[str, Any]:
    rows = [{"type": kind, "status": word, "reason": reason} for kind, word, reason in conditions]
    specs = {"Launcher": {"template": {}}, "Worker": {"replicas": 2, "template": {}}}
    return {"spec": {"mpiReplicaSpecs": specs}, "status": {"conditions": rows, **status}}


def state(job: dict[str, Any]) -> State:
    read = V2.read(job, ())
    return state_of(
        Observation(
            run="r", job="j", uid="u", created=0.0, conditions=read.conditions, suspended=read.suspended
        )
    )


def test_pods_of_v2beta1_are_told_by_their_role_and_name() -> None:
    labels = {"training.kubeflow.org/replica-index": "1"}  # with runLauncherAsWorker it counts the launcher
    pods = [
        a_pod("digits-launcher-9xk2p", "Failed", 1, **of_role("launcher")),
        a_pod("digits-launcher-aaaaa", "Running", 2, **of_role("launcher")),
        a_pod("digits-worker-0", **of_role("worker"), **labels),
    ]
    assert [V2.member_of(pod) for pod in pods] == ["launcher-0", "launcher-0", "worker-0"]
    assert V2.member_of(a_pod("stranger")) is None
    members = V2.read(an_object(), pods).members
    assert [(m.name, m.rank, m.phase) for m in members] == [
        ("launcher-0", 0, "running"),
        ("worker-0", 1, "running"),
        ("worker-1", 2, "pending"),
    ]


def test_pods_of_v1_are_told_by_their_replica_type() -> None:
    launcher = {"training.kubeflow.org/replica-type": "launcher", "training.kubeflow.org/job-role": "master"}
    assert V1.member_of(a_pod("digits-launcher", **launcher)) == "launcher-0"
    worker = {
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "1",
    }
    assert V1.member_of(a_pod("digits-worker-1", **worker)) == "worker-1"
    assert V1.read({"spec": {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {}}}}, ()).total == 1


CREATED = ("Created", "True", "MPIJobCreated")
ENDED = {"completionTime": "2026-01-01T00:01:00Z"}
RAN = ("Running", "False", "MPIJobRunning")


@pytest.mark.parametrize(
    ("conditions", "status", "expected"),
    [
        ([CREATED], {}, State.STARTING),
        ([CREATED, ("Running", "True", "MPIJobRunning")], {}, State.RUNNING),
        ([CREATED, ("Succeeded", "True", "MPIJobSucceeded")], ENDED, State.SUCCEEDED),
        (
            [CREATED, ("Succeeded", "True", "MPIJobSucceeded"), ("Running", "False", "MPIJobRunning")],
            ENDED, State.SUCCEEDED,
        ),
        (
            [CREATED, RAN, ("Failed", "False", "MPIJobEvicted"), ("Succeeded", "True", "MPIJobSucceeded")],
            ENDED, State.SUCCEEDED,
        ),
        ([CREATED, RAN, ("Failed", "True", "BackoffLimitExceeded/")], ENDED, State.FAILED),
        ([CREATED, RAN, ("Failed", "True", "MPIJobEvicted")], ENDED, State.FAILED),
        (
            [CREATED, ("Failed", "True", "MPIJobEvicted"), ("Running", "True", "MPIJobRunning")], {},
            State.RUNNING,
        ),
        ([CREATED, RAN, ("Failed", "True", "MPIJobEvicted")], {}, State.STARTING),
        ([CREATED, ("Suspended", "True", "MPIJobSuspended")], {}, State.SUSPENDED),
    ],
    ids=[
        "created", "running", "succeeded without Running", "Running=False comes last",
        "succeeded after an eviction", "failed", "evicted, and the launcher failed, too",
        "evicted, and it goes on", "evicted, and nobody has decided", "suspended",
    ],
)  # fmt: skip
def test_a_status_is_read_as_the_operator_means_it(
    conditions: list[tuple[str, str, str]], status: dict[str, Any], expected: State
) -> None:
    assert state(an_object(*conditions, **status)) is expected


def test_an_eviction_is_no_end_yet() -> None:
    evicted = an_object(CREATED, ("Failed", "True", "MPIJobEvicted"), startTime="2026-01-01T00:00:00Z")
    read = V2.read(evicted, ())
    assert read.finished is None and {m.phase for m in read.members} == {"pending"}
    assert ("Failed", "Unknown", "MPIJobEvicted") in {(c.type, c.status, c.reason) for c in read.conditions}
    final = V1.read(evicted, ())
    assert {m.phase for m in final.members} == {"deleted"}, "for the Training Operator it is one"


# What cannot be said to them.


@BOTH
@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"policy": {"restart": "always"}}, "policy.restart", "never and on_failure alone"),
        ({"policy": {"restart": "exit_code"}}, "policy.restart", "never and on_failure alone"),
        ({"workers": None, "groups": {"worker": 2}}, "groups", "needs a launcher"),
        (
            {"workers": None, "groups": {"launcher": 2, "worker": 2}}, "groups.launcher",
            "2 is too many; MPIJob takes exactly 1, put the others into worker",
        ),
        ({"processes_per_member": "gpu"}, "processes_per_member", "give a number, or auto"),
        ({"elastic": {"min": 1}}, "elastic", "a fixed number of members"),
        ({"command": ["python", "train.py"]}, "command", "starts no ranks"),
    ],
)  # fmt: skip
def test_what_an_mpijob_cannot_do_is_said_at_its_field(
    engine: str, fields: dict[str, Any], path: str, words: str
) -> None:
    found = said(engine=engine, **fields)
    assert words in found.get(path, f"nothing; said {found}")


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"engine_spec": {"mpiImplementation": "openmpi"}}, "engine_spec.mpiImplementation", "give OpenMPI"),
        ({"engine_spec": {"runLauncherAsWorker": "yes"}}, "engine_spec.runLauncherAsWorker", "true or false"),
        ({"engine_spec": {"sshAuthMountPath": 7}}, "engine_spec.sshAuthMountPath", "give a path"),
        (
            {"engine_spec": {"launcherCreationPolicy": "WaitForWorkersReady"}},
            "engine_spec.launcherCreationPolicy", "would wait for the gang",
        ),
        ({"policy": {"ttl": "1h"}}, "policy.ttl", "the MPIJob stays"),
        (
            {"workers": None, "groups": {"launcher": 1, "worker": {"command": ["sleep", "9"]}}},
            "groups.worker.command", "in the place of sshd",
        ),
        ({"environment": {"OMPI_MCA_plm_rsh_args": "-v"}}, "environment.OMPI_MCA_plm_rsh_args", "wins"),
        ({"checkpoints": {"uri": "s3://b/c"}}, "command", "give -x ALLABOARD_RUN"),
    ],
)  # fmt: skip
def test_what_the_mpi_operator_cannot_do_is_said_at_its_field(
    fields: dict[str, Any], path: str, words: str
) -> None:
    found = said(**fields)
    assert words in found.get(path, f"nothing; said {found}")


def test_nothing_is_said_of_what_works() -> None:
    assert said() == {} == said(command=["bash", "launch.sh", "-v"])
    waits = {"launcherCreationPolicy": "WaitForWorkersReady"}
    assert said(engine_spec=waits, gang={"scheduler": "none"}) == {}
    saves = {"uri": "s3://b/c"}
    assert said(checkpoints=saves, command=["mpirun", "-x", "ALLABOARD_CHECKPOINTS", "python", "x.py"]) == {}
    assert said(checkpoints=saves, engine_spec={"mpiImplementation": "MPICH"}) == {}
    assert said(checkpoints=saves, engine="mpijob-v1") == {}, "kubectl exec finds the worker's variables"


@pytest.mark.parametrize(
    ("engine", "how", "reason"),
    [
        ("mpijob", "Failed", "BackoffLimitExceeded/"),
        ("mpijob", "BackoffLimit", "BackoffLimitExceeded"),
        ("mpijob", "Deadline", "DeadlineExceeded"),
        ("mpijob", "Succeeded", "MPIJobSucceeded"),
        ("mpijob-v1", "Failed", "MPIJobMPIJobFailed"),
        ("mpijob-v1", "Deadline", "MPIJobFailed"),
    ],
)
def test_reasons_are_those_of_the_operators(engine: str, how: str, reason: str) -> None:
    assert ENGINES[engine].reason(how, an_mpijob(engine, workers=2)) == reason
