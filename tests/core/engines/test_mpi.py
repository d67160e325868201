"""Jobs of MPI that become JobSets and TrainJobs: what connects launcher and workers, who decides, and what is
refused. tests/cluster/test_jobset_and_trainjob.py runs them, with sshd and mpirun.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest

from allaboard.backends.kubernetes.lifecycle import ssh_keys
from allaboard.checking.job import check
from allaboard.convert.manifests import convert, documents
from allaboard.engines import BY_FRAMEWORK, ENGINES
from allaboard.errors import SiteError
from allaboard.render.manifests import Rendered
from allaboard.runs.layout import lay_out
from allaboard.testing import a_job
from tests.core.backends.kubernetes.golden import MPI_FILES, made, of_mpi
from tests.core.engines.test_jobset_and_trainjob import a_pod, jobs, jobset_spec

BOTH = pytest.mark.parametrize("engine", ["jobset", "trainjob"])
COMMAND = ["mpirun", "python", "train.py"]
ALONE = {"gang": {"scheduler": "none"}}


def rendered(engine: str, **fields: Any) -> Rendered:
    return made(**{"framework": "mpi", "engine": engine, "command": COMMAND, "workers": 2, **fields})


def said(engine: str, **fields: Any) -> dict[str, str]:
    job = {"framework": "mpi", "engine": engine, "command": COMMAND, **fields}
    return {p.path: p.severity for p in check(a_job(**job))}


def container(found: Rendered, job: str) -> dict[str, Any]:
    (main,) = jobs(found)[job]["template"]["spec"]["containers"]
    return dict(main)


def variables(found: Rendered, job: str = "launcher") -> dict[str, str]:
    return {v["name"]: v.get("value", "") for v in container(found, job)["env"]}


def mounts(found: Rendered, job: str) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container(found, job)["volumeMounts"]}


# Down.


@pytest.mark.parametrize("engine", MPI_FILES)
def test_one_job_of_each(engine: str) -> None:
    """A difference is a change of what is sent: look at it, then run
    `python -m tests.core.backends.kubernetes.golden`.
    """
    assert of_mpi(engine) == MPI_FILES[engine].read_text()


@BOTH
def test_members_get_what_the_mpi_operator_would_tell_them(engine: str) -> None:
    usual = BY_FRAMEWORK["mpi"][0]
    found = rendered(engine, processes_per_member=4)
    layout = lay_out(a_job(framework="mpi", workers=2, processes_per_member=4), usual, "digits")
    launcher, worker, _ = layout.members
    assert usual.environment(layout, launcher, {}).items() <= variables(found).items()
    job = {"jobset": "worker", "trainjob": "node"}[engine]
    assert usual.environment(layout, worker, {}).items() <= variables(found, job).items()
    assert variables(found)["OMPI_MCA_orte_set_default_slots"] == "4"
    assert variables(found)["ALLABOARD_MEMBER"] == "launcher-$(ALLABOARD_INDEX)"
    assert variables(found, job)["ALLABOARD_MEMBER"] == "worker-$(ALLABOARD_INDEX)"


@BOTH
def test_open_mpi_5_reads_variables_of_its_own_unless_the_job_says_them(engine: str) -> None:
    found = variables(rendered(engine, environment={"PRTE_MCA_plm_ssh_args": "-v"}))
    assert found["PRTE_MCA_prte_default_hostfile"] == found["OMPI_MCA_orte_default_hostfile"]
    assert found["PRTE_MCA_plm_ssh_args"] == "-v"
    assert not any("PRTE" in name for name in variables(made(workers=2, engine="jobset"), "worker"))


@pytest.mark.parametrize(
    ("implementation", "line", "variable"),
    [
        ("OpenMPI", "{} slots=2\n", "OMPI_MCA_orte_default_hostfile"),
        ("Intel", "{}:2\n", "I_MPI_HYDRA_HOST_FILE"),
        ("MPICH", "{}:2\n", "HYDRA_HOST_FILE"),
    ],
)
@pytest.mark.parametrize("works", [False, True])
def test_the_hostfile_of_a_jobset_names_who_has_slots(
    implementation: str, line: str, variable: str, works: bool
) -> None:
    own = {"mpiImplementation": implementation, "runLauncherAsWorker": works}
    found = rendered("jobset", processes_per_member=2, engine_spec=own)
    name = found.job["metadata"]["name"]
    hosts = [f"{name}-{m}-0.{name}" for m in ("launcher-0", "worker-0", "worker-1")]
    hostfile, _ = found.extras[-2:]
    assert hostfile["data"] == {"hostfile": "".join(map(line.format, hosts[0 if works else 1 :]))}
    assert variables(found)[variable] == "/etc/mpi/hostfile"
    assert mounts(found, "launcher")["/etc/mpi"] == "mpi-hostfile" and "/etc/mpi" not in mounts(
        found, "worker"
    )


@BOTH
def test_a_key_pair_connects_them_and_no_text_has_it(engine: str) -> None:
    found = rendered(engine)
    secrets = [m for m in found.manifests if m["kind"] == "Secret"]
    assert len(secrets) == (1 if engine == "jobset" else 0), "Trainer makes the other"
    assert not any("data" in secret or "stringData" in secret for secret in secrets)
    name = f"{found.job['metadata']['name']}-mpi-ssh-auth"
    assert [s["metadata"]["name"] for s in secrets] in ([], [name])
    assert ENGINES[engine].secrets_of(lay_out(a_job(framework="mpi"), ENGINES[engine], "digits")) != ()
    for job in jobs(found).values():
        (volume,) = [v for v in job["template"]["spec"]["volumes"] if "secret" in v]
        assert volume["secret"]["secretName"] == name and volume["secret"]["defaultMode"] == 0o600
        files = {item["path"]: item["key"] for item in volume["secret"]["items"]}
        assert files == {
            "id_rsa": "ssh-privatekey", "id_rsa.pub": "ssh-publickey", "authorized_keys": "ssh-publickey",
        }  # fmt: skip


@BOTH
def test_another_user_than_root_finds_it_at_home(engine: str) -> None:
    found = rendered(engine, engine_spec={"sshAuthMountPath": "/home/mpiuser/.ssh"})
    for name, job in jobs(found).items():
        assert mounts(found, name)["/home/mpiuser/.ssh"] == "ssh-auth"
        (volume,) = [v for v in job["template"]["spec"]["volumes"] if "secret" in v]
        assert "defaultMode" not in volume["secret"], "a user that is not its owner has to read it"


@BOTH
def test_workers_run_sshd_unless_they_say_what(engine: str) -> None:
    job = {"jobset": "worker", "trainjob": "node"}[engine]
    assert container(rendered(engine), job)["command"] == ["/usr/sbin/sshd", "-De"]
    groups = {"launcher": 1, "worker": {"replicas": 2, "command": ["own"], "args": ["-x"]}}
    own = container(rendered(engine, workers=None, groups=groups), job)
    assert (own["command"], own["args"]) == (["own"], ["-x"])
    assert container(rendered(engine), "launcher")["command"] == COMMAND


@BOTH
@pytest.mark.parametrize("gang", [{"scheduler": "none"}, {"scheduler": "coscheduling"}])
def test_the_launcher_decides_and_waits_for_workers_that_are_no_gang(
    engine: str, gang: dict[str, Any]
) -> None:
    spec = jobset_spec(rendered(engine, gang=gang))
    workers = {"jobset": "worker", "trainjob": "node"}[engine]
    assert [job["name"] for job in spec["replicatedJobs"]] == [workers, "launcher"]
    waits = spec["replicatedJobs"][1].get("dependsOn")
    assert waits == ([{"name": workers, "status": "Ready"}] if gang["scheduler"] == "none" else None)
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["launcher"]}


@BOTH
@pytest.mark.parametrize(
    ("restart", "word", "limit"), [("on_failure", "OnFailure", 4), ("never", "Never", 0)]
)
def test_members_are_restarted_one_by_one(engine: str, restart: str, word: str, limit: int) -> None:
    found = rendered(engine, policy={"restart": restart, "backoff_limit": 4})
    assert "failurePolicy" not in jobset_spec(found)
    for job in jobs(found).values():
        assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (limit, word)
        assert "podFailurePolicy" not in job


@pytest.mark.parametrize(
    ("workers", "works", "nodes", "parallelism"), [(2, False, 2, 2), (2, True, 3, 2), (0, True, 1, None)]
)
def test_trainer_makes_the_hostfile_by_numbers(
    workers: int, works: bool, nodes: int, parallelism: int | None
) -> None:
    groups = {"launcher": 1, **({"worker": workers} if workers else {})}
    own = {"runLauncherAsWorker": works}
    found = rendered("trainjob", workers=None, groups=groups, processes_per_member=2, engine_spec=own)
    assert found.job["spec"]["trainer"] == {"numNodes": nodes, "numProcPerNode": 2}
    policy = found.extras[-1]["spec"]["mlPolicy"]
    assert (policy["numNodes"], policy["mpi"]["runLauncherAsNode"]) == (1, works)
    assert jobs(found).get("node", {}).get("parallelism") == parallelism


@BOTH
def test_what_they_cannot_do_is_said_with_its_path(engine: str) -> None:
    assert said(engine) == {}
    assert said(engine, policy={"restart": "exit_code"}) == {"policy.restart": "error"}
    assert said(engine, workers=None, groups={"worker": 2}) == {"groups": "error"}
    path = "engine_spec.launcherCreationPolicy"
    waits = {"launcherCreationPolicy": "WaitForWorkersReady"}
    assert said(engine, engine_spec=waits) == said(engine, engine_spec=waits, **ALONE) == {path: "error"}
    assert said(engine, engine_spec={"mpiImplementation": "Itel"}) == {
        "engine_spec.mpiImplementation": "error"
    }
    intel = said(engine, engine_spec={"mpiImplementation": "Intel"})
    assert intel == ({"engine_spec.mpiImplementation": "error"} if engine == "trainjob" else {})
    other = said(engine, framework="pytorch", engine_spec={"runLauncherAsWorker": True})
    assert other == {"engine_spec.runLauncherAsWorker": "error", "command[0]": "warning"}, "mpirun of PyTorch"
    ttl = said(engine, policy={"ttl": "1h"})
    assert ttl == ({"policy.ttl": "warning"} if engine == "trainjob" else {}), "a JobSet goes as a whole"


RUNTIME = {"runtimeRef": {"name": "deepspeed-distributed"}}


@pytest.mark.parametrize(("works", "nodes"), [(True, 3), (False, 2)])
def test_a_runtime_of_the_cluster_has_a_launcher_and_workers(works: bool, nodes: int) -> None:
    own = {**RUNTIME, **({"runLauncherAsWorker": True} if works else {})}
    needs = {"resources": {"gpu": 2}} if works else {}
    found = rendered("trainjob", engine_spec=own, environment={"A": "1"}, args=None, image=None, **needs)
    assert [m["kind"] for m in found.manifests] == ["TrainJob"], "no runtime of its own"
    spec = found.job["spec"]
    assert (spec["runtimeRef"], spec["trainer"]["numNodes"]) == (RUNTIME["runtimeRef"], nodes)
    assert ("resourcesPerNode" in spec["trainer"]) == works and "image" not in spec["trainer"]
    assert {"name": "A", "value": "1"} in spec["trainer"]["env"]
    names = {variable["name"] for variable in spec["trainer"]["env"]}
    assert not names & {"ALLABOARD_INDEX", "ALLABOARD_MEMBER", "ALLABOARD_RANK"}
    assert not any(name.startswith(("OMPI_", "PRTE_")) for name in names), "Trainer and the runtime say them"
    patched = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert [job["name"] for job in patched] == ["launcher", "node"]
    for job in patched:
        metadata = job["template"]["spec"]["template"]["metadata"]
        assert metadata["labels"]["allaboard.io/run"] == found.job["metadata"]["name"]
        assert metadata["annotations"]["allaboard.io/members"] == "launcher:1,worker:2"
    templates = {
        role: (count, template["spec"]["containers"][0])
        for role, count, template in ENGINES["trainjob"].templates(found.job, found.extras)
    }
    assert {role: count for role, (count, _) in templates.items()} == {"launcher": 1, "worker": 2}
    worker = templates["worker"][1]
    assert "command" not in worker and ("resources" in worker) == works == bool(worker["env"])


def test_what_cannot_be_said_of_one_side_of_a_runtime_is_refused_with_its_path() -> None:
    own = {**RUNTIME, "runLauncherAsWorker": True}
    assert said("trainjob", engine_spec=own) == {}
    assert said("trainjob", engine_spec=own, image="lab/x:1") == {"image": "warning"}
    needs: dict[str, Any] = {"image": None, "resources": {"cpu": 1}}
    assert said("trainjob", engine_spec=own, **needs) == {}
    assert said("trainjob", engine_spec=RUNTIME, **needs) == {"resources": "error"}
    groups = {
        "launcher": {"resources": {"cpu": 1}},
        "worker": {"environment": {"A": "1"}, "pod": {"spec": {"hostNetwork": True}}},
    }
    both = {"groups.worker.environment", "groups.worker.pod.spec.hostNetwork"}
    alone = said("trainjob", engine_spec=RUNTIME, image=None, workers=None, groups=groups)
    assert {path for path, how in alone.items() if how == "error"} == both
    as_node = said("trainjob", engine_spec=own, image=None, workers=None, groups=groups)
    assert {path for path, how in as_node.items() if how == "error"} == both | {"groups.launcher.resources"}
    main = {"spec": {"containers": [{"name": "mpi", "image": "x", "volumeMounts": []}]}}
    groups = {"launcher": {"pod": main}, "worker": {"replicas": 1, "pod": main}}
    assert said("trainjob", engine_spec=own, image=None, workers=None, groups=groups) == {
        "groups.worker.pod.spec.containers[0].image": "error"
    }
    alone = said("trainjob", engine_spec=own, workers=None, groups={"launcher": 1})
    assert alone == {"groups": "error"}
    settings = {"mpiImplementation": "OpenMPI", "sshAuthMountPath": "/root/.ssh"}
    assert said("trainjob", engine_spec={**own, **settings}, image=None) == {
        f"engine_spec.{name}": "error" for name in settings
    }


def test_a_cluster_without_mpijobs_has_it_all_the_same() -> None:
    assert [engine.NAME for engine in BY_FRAMEWORK["mpi"]] == ["mpijob", "mpijob-v1", "trainjob", "jobset"]


# Up.


def test_members_of_a_jobset_are_told_launcher_first() -> None:
    found = rendered("jobset")
    job = {**found.job, "status": {}}
    pods = [a_pod("worker", 1, "Pending"), a_pod("worker", 0, "Running"), a_pod("launcher", 0, "Running")]
    seen = ENGINES["jobset"].read(job, pods)
    assert [(m.name, m.rank, m.phase) for m in seen.members] == [
        ("launcher-0", 0, "running"), ("worker-0", 1, "running"), ("worker-1", 2, "pending"),
    ]  # fmt: skip
    roles = [(role, count) for role, count, _ in ENGINES["jobset"].templates(found.job, found.extras)]
    assert roles == [("launcher", 1), ("worker", 2)]


def test_the_nodes_of_a_trainjob_are_its_workers() -> None:
    found = rendered("trainjob")
    pods = [a_pod("launcher", 0, "Running"), *(a_pod("node", 0, "Running", completion=n) for n in (0, 1))]
    for pod in pods:
        pod["metadata"]["annotations"] = {"allaboard.io/members": "launcher:1,worker:2"}
    seen = ENGINES["trainjob"].read({**found.job, "status": {}}, pods)
    assert [(m.name, m.rank, m.phase) for m in seen.members] == [
        ("launcher-0", 0, "running"), ("worker-0", 1, "running"), ("worker-1", 2, "running"),
    ]  # fmt: skip
    roles = [(role, count) for role, count, _ in ENGINES["trainjob"].templates(found.job, found.extras)]
    assert sorted(roles) == [("launcher", 1), ("worker", 2)]


# The key pair.


def test_a_key_pair_is_made_anew_each_time_and_only_for_its_secret() -> None:
    secret = next(m for m in rendered("jobset").manifests if m["kind"] == "Secret")
    first, second = ssh_keys.filled(secret), ssh_keys.filled(secret)
    assert first["data"] != second["data"] and "data" not in secret
    assert base64.b64decode(first["data"]["ssh-publickey"]).startswith(b"ecdsa-sha2-nistp521 ")
    other = {"kind": "Secret", "metadata": {"name": "x"}, "type": "Opaque"}
    assert ssh_keys.filled(other) is other


def test_whoever_cannot_make_one_says_so_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_keys, "find_spec", lambda name: None)
    with pytest.raises(SiteError, match=r"pip install 'allaboard\[mpi\]'"):
        ssh_keys.require_maker(rendered("jobset").extras)
    ssh_keys.require_maker(rendered("trainjob").extras)


# From an MPIJob.


MPIJOB = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi}
spec:
  mpiImplementation: Intel
  sshAuthMountPath: /home/mpiuser/.ssh
  launcherCreationPolicy: AtStartup
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: mpi, image: x, command: [mpirun, pi]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: mpi, image: x}]}}
"""


def test_an_mpijob_becomes_a_jobset_that_says_how_to_get_a_key() -> None:
    (outcome,) = convert(documents(MPIJOB, "pi.yaml"), to="jobset")
    assert [one["kind"] for one in outcome.documents] == ["ConfigMap", "Secret", "JobSet"]
    assert outcome.documents[0]["data"]["hostfile"] == "pi-worker-0-0.pi:1\npi-worker-1-0.pi:1\n"
    lost = {loss.path: loss.reason for loss in outcome.lost}
    restart = "spec.mpiReplicaSpecs.Worker.restartPolicy"
    assert {*lost} == {"kind", "spec.launcherCreationPolicy", "spec.runPolicy.cleanPodPolicy", restart}
    assert lost[restart].startswith("JobSet has one rule for all members")
    assert "kubectl create secret generic pi-mpi-ssh-auth" in lost["kind"]


@BOTH
def test_a_member_that_fails_is_restarted_alone(engine: str) -> None:
    """Here as on the cluster: workers that wait have lost nobody when the launcher fails."""
    found = rendered(engine)
    layout = lay_out(
        a_job(framework="mpi", engine=engine, command=COMMAND), ENGINES[engine], "digits-1f0c9a77"
    )
    assert ENGINES[engine].rules(layout).scope == "member"
    assert ENGINES[engine].read(found.job, ()).scope == "member"
    assert ENGINES[engine].read(made(engine=engine, workers=2).job, ()).scope == "gang"
