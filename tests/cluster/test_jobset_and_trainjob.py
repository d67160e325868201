"""JobSet and TrainJob on a real cluster, with members that are real processes: what they are told, how a job
ends, restarts of the gang, stop, suspend and resume.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.discovery import rbac
from tests.cluster.api import until
from tests.cluster.components.trainer import STATUS_SERVER
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, IMAGE, ROOT, Terminal

OWN = "allaboard.test/jobset"
ENGINES = ("jobset", "trainjob")
EXAMPLES = ROOT / "dags_examples" / "engines"
SHOWS = """
import json, os, socket, sys, time
from allaboard.inside import context
where = context()
told = {**os.environ, "rank": where.rank, "world": where.world_size, "member": where.member}
address = os.environ.get("MASTER_ADDR") or os.environ["PET_MASTER_ADDR"]
for _ in range(60):
    try:
        told["meets"] = socket.gethostbyname(address)
        break
    except OSError:  # its pod is not there yet
        time.sleep(0.5)
print(json.dumps(told), flush=True)
time.sleep(3 * (where.rank == 0))
sys.exit(int(sys.argv[1]))
"""

pytestmark = [
    pytest.mark.needs("jobset", "trainer", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def pod(plane_of_nodes: ControlPlane) -> Iterator[dict[str, Any]]:
    """What brings members to a node of these tests' own."""
    mark = f"jobset-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "16", "memory": "32Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane_of_nodes, [spec], code=CODE):
        yield {
            "spec": {
                "nodeSelector": {OWN: mark},
                "tolerations": [{"key": OWN, "operator": "Exists"}],
                "terminationGracePeriodSeconds": 2,
            }
        }


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, tmp_path: Path) -> Terminal:
    return Terminal.on(plane.kubeconfig, namespace, tmp_path)


def a_job(engine: str, pod: dict[str, Any], code: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "name": "digits",
        "engine": engine,
        "groups": {"master": 1, "worker": 2},
        "command": ["python", "-c", SHOWS, str(code)],
        "policy": {"restart": "never"},
        "pod": pod,
        **fields,
    }


def told(ab: Terminal, run: str, member: str) -> dict[str, Any]:
    (line,) = ab("logs", run, member, "--json").out.splitlines()
    said: dict[str, Any] = json.loads(json.loads(line)["text"])
    return said


@pytest.mark.parametrize("engine", ENGINES)
def test_members_know_their_ranks_and_meet(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(a_job(engine, pod)))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded"
    assert [(m["group"], m["index"], m["rank"]) for m in body["members"]] == [
        ("master", 0, 0),
        ("worker", 0, 1),
        ("worker", 1, 2),
    ]
    for rank, member in enumerate(("master-0", "worker-0", "worker-1")):
        said = told(ab, body["run"], member)
        assert (said["rank"], said["world"], said["member"]) == (rank, 3, member)
        assert (said["RANK"], said["WORLD_SIZE"]) == (str(rank), "3")
        assert (said["PET_NODE_RANK"], said["PET_NNODES"], said["PET_NPROC_PER_NODE"]) == (
            str(rank),
            "3",
            "1",
        )
        assert said["MASTER_ADDR"] == said["PET_MASTER_ADDR"]
        assert said["meets"] == told(ab, body["run"], "master-0")["meets"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_fails_with_a_member(ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(a_job(engine, pod, 3)))
    said = ab("run", "job.yaml", "--key", "k", "--json", code=1).json
    assert said["state"] == "failed" and said["restarts"] == 0
    assert 3 in {m["exit_code"] for m in said["members"]}
    assert any("exit code: 3" in str(d) or "exited with 3" in str(d) for d in said["diagnoses"]), said


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gang_is_restarted_as_often_as_the_job_allows(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str
) -> None:
    fails = "import os, time; is_1 = os.environ['RANK'] == '1'; time.sleep(4 * (not is_1)); exit(is_1)"
    job = a_job(engine, pod, command=["python", "-c", fails])
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump({**job, "policy": {"restart": "on_failure", "backoff_limit": 1}})
    )
    said = ab("run", "job.yaml", "--key", "k", "--json", code=1).json
    assert said["state"] == "failed"
    (failed,) = (c for c in said["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "ReachedMaxRestarts"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_deadline_ends_a_job_that_nobody_follows(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str
) -> None:
    job = a_job(engine, pod, command=["sleep", "600"], policy={"restart": "on_failure", "deadline": "4s"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    run = ab("run", "job.yaml", "--key", "k", "--detach", "--json").json["run"]
    end = time.monotonic() + 90
    while (state := ab("status", run, "--json").json["state"]) not in ("timed_out", "failed", "stopped"):
        assert time.monotonic() < end, state
        time.sleep(1)
    assert state == "timed_out"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_is_stopped_suspended_and_resumed_like_any_other(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str
) -> None:
    job = a_job(engine, pod, command=["sleep", "600"])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    run = ab("run", "job.yaml", "--key", "k", "--detach", "--json").json["run"]
    ab.until_it_runs(run)
    assert ab("suspend", run, "--json").json["state"] == "suspended"
    ab("resume", run)
    ab.until_it_runs(run)
    assert ab("stop", run, "--json").json["state"] == "stopped"
    # What has ended goes a moment later: dependents of a TrainJob are deleted behind it.
    until("its pods to be gone", lambda: {m["phase"] for m in ab.seen(run)["members"]} == {"deleted"})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("example", "metrics"),
    [("xgboost", {"accuracy": 1.0}), ("jax", {"slope": 3.0, "intercept": 0.5})],
)
def test_the_examples_train_with_their_frameworks(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str, example: str, metrics: dict[str, float]
) -> None:
    pytest.importorskip(example)
    job = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    (script,) = job["code"]
    shutil.copy(EXAMPLES / script, tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "engine": engine, "pod": pod}))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded" and body["metrics"] == metrics
    assert body["progress"]["step"] == body["progress"]["total"]


TELLS = """
import http.client, json, os, socket, ssl, time
from urllib.parse import urlsplit
url = urlsplit(os.environ["KUBEFLOW_TRAINER_SERVER_URL"])
trust = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
server = http.client.HTTPSConnection(url.hostname, url.port)
# No Service leads to Trainer, which runs beside the API server.
plain = socket.create_connection(("host.internal", url.port))
server.sock = trust.wrap_socket(plain, server_hostname=url.hostname)
status = {"progressPercentage": 45, "estimatedRemainingSeconds": 90}
status["metrics"] = [{"name": "loss", "value": "0.25"}]
status["lastUpdatedTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read()
head = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
server.request("POST", url.path, json.dumps({"trainerStatus": status}), head)
answer = server.getresponse()
print(answer.status, answer.read().decode(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def status_server(plane: ControlPlane) -> Iterator[None]:
    """Trainer with the server to which members tell their progress, which is off where nobody says it."""
    plane.restart("trainer", flags=[STATUS_SERVER])
    try:
        yield
    finally:
        plane.restart("trainer", flags=[])


def test_the_progress_that_a_member_tells_trainer_is_shown(
    status_server: None, ab: Terminal, pod: dict[str, Any], tmp_path: Path
) -> None:
    tells = a_job("trainjob", pod, groups={"worker": 1}, command=["python", "-c", TELLS])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tells))
    run = ab("run", "job.yaml", "--key", "k", "--detach", "--json").json["run"]
    ab.until_it_runs(run)
    until("the member to have told", lambda: ab("logs", run).out)
    assert ab("logs", run).out.startswith("200 ")
    seen = ab("status", run, "--json").json
    assert seen["progress"]["step"] == 45 and seen["progress"]["total"] == 100
    assert seen["metrics"] == {"loss": 0.25, "steps_per_second": 55 / 90}
    assert "step 45/100 (45%), loss 0.25, 0.611 steps/s, 1m 30s left" in ab("status", run).out
    ab("stop", run)


def test_a_job_trains_by_a_runtime_of_the_cluster(ab: Terminal, pod: dict[str, Any], tmp_path: Path) -> None:
    named = {"runtimeRef": {"name": "torch-distributed"}}
    job = a_job("trainjob", pod, groups={"worker": 2}, engine_spec=named, policy={})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded"
    for rank, member in enumerate(("worker-0", "worker-1")):
        said = told(ab, body["run"], member)
        assert (said["member"], said["PET_NODE_RANK"], said["PET_NNODES"]) == (member, str(rank), "2")


def test_an_initializer_of_the_runtime_runs_before_the_members(
    ab: Terminal, plane: ControlPlane, namespace: str, pod: dict[str, Any], tmp_path: Path
) -> None:
    step = "trainer.kubeflow.org/trainjob-ancestor-step"

    def a_step(name: str, of: str, **fields: Any) -> dict[str, Any]:
        main = {"name": name, "image": IMAGE, "volumeMounts": [{"name": "initializer", "mountPath": "/w"}]}
        main |= {"command": ["sh", "-c", "echo prepares $STORAGE_URI"]} if of != "trainer" else {}
        volumes = [{"name": "initializer", "emptyDir": {}}]
        template = {
            "spec": {**pod["spec"], "restartPolicy": "Never", "containers": [main], "volumes": volumes}
        }
        job = {"metadata": {"labels": {step: of}}, "spec": {"template": template}}
        return {"name": name, "template": job, **fields}

    before = [{"name": "dataset-initializer", "status": "Complete"}]
    jobs = [
        a_step("dataset-initializer", "dataset-initializer"),
        a_step("node", "trainer", dependsOn=before),
    ]
    plane.api.create(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": {"name": "prepared", "namespace": namespace},
            "spec": {
                "mlPolicy": {"numNodes": 1, "torch": {}},
                "template": {"spec": {"replicatedJobs": jobs}},
            },
        }
    )
    own = {
        "runtimeRef": {"kind": "TrainingRuntime", "name": "prepared"},
        "initializer": {"dataset": {"storageUri": "hf://lab/digits"}},
    }
    job = a_job("trainjob", pod, groups={"worker": 2}, engine_spec=own, policy={})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded" and [m["rank"] for m in body["members"]] == [0, 1]
    assert told(ab, body["run"], "worker-1")["rank"] == 1
    pods = plane.api.list("v1", "Pod", namespace)
    (name,) = [p["metadata"]["name"] for p in pods if "-dataset-initializer-" in p["metadata"]["name"]]
    log = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}/log")
    assert log == "prepares hf://lab/digits\n"


def test_a_jobset_of_others_runs_as_a_job_whose_members_meet(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path
) -> None:
    """Its hosts have its own name, by which nobody in a run is known."""
    name = {"fieldRef": {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/jobset-name']"}}
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    container = {
        "name": "train",
        "image": IMAGE,
        "command": ["python", "-c", SHOWS, "0"],
        "env": [
            {"name": "NAME", "valueFrom": name},
            {"name": "MASTER_ADDR", "value": "$(NAME)-workers-0-0.$(NAME)"},
            {"name": "RANK", "valueFrom": rank},
            {"name": "WORLD_SIZE", "value": "3"},
            {"name": "MEETS_AT", "value": "theirs-workers-0-0.theirs:29400"},
        ],
    }
    template = {"spec": {"containers": [container], "restartPolicy": "Never", **pod["spec"]}}
    job = {"spec": {"parallelism": 3, "completions": 3, "backoffLimit": 0, "template": template}}
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "theirs"},
        "spec": {"replicatedJobs": [{"name": "workers", "template": job}]},
    }
    (tmp_path / "jobset.yaml").write_text(yaml.safe_dump(manifest))
    body = ab("run", "jobset.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded"
    for index, member in enumerate(("master-0", "worker-0", "worker-1")):
        said = told(ab, body["run"], member)
        assert (said["RANK"], said["WORLD_SIZE"], said["NAME"]) == (str(index), "3", body["run"])
        assert said["JOB_COMPLETION_INDEX"] == str(index)
        assert said["MEETS_AT"] == f"{said['MASTER_ADDR']}:29400"
        assert said["meets"] == told(ab, body["run"], "master-0")["meets"]


# MPI: mpirun over SSH, between pods that are real processes.


_MOUNTS = [{"name": "keys", "mountPath": "/etc/ssh"}, {"name": "own", "mountPath": "/run/sshd"}]
_BEFORE = "ssh-keygen -A && echo StrictModes no > /etc/ssh/sshd_config && chmod 755 /run/sshd"
SSHD = {
    "containers": [{"name": "mpi", "volumeMounts": _MOUNTS}],
    "initContainers": [
        {"name": "image", "image": IMAGE, "command": ["sh", "-c", _BEFORE], "volumeMounts": _MOUNTS}
    ],
    "volumes": [{"name": "keys", "emptyDir": {}}, {"name": "own", "emptyDir": {}}],
}
"""What an image that runs sshd brings with it: keys of the host, a configuration, and a folder of its own."""
RANKS = """
import os, socket, sys
said = ["rank", os.environ["OMPI_COMM_WORLD_RANK"], "of", os.environ["OMPI_COMM_WORLD_SIZE"],
        "at", socket.gethostname(), "told", os.environ.get("ALLABOARD_RUN"), os.environ.get("SAID")]
os.write(1, (" ".join(map(str, said)) + "\\n").encode())  # at once: mpirun mixes what ranks write
sys.exit(int(os.environ.get("ENDS", "0")))
"""


def an_mpi_job(engine: str, pod: dict[str, Any], command: list[str], **fields: Any) -> dict[str, Any]:
    """Workers have no command of their own: they run sshd."""
    return {
        "name": "digits",
        "framework": "mpi",
        "engine": engine,
        "processes_per_member": 2,
        "command": command,
        "groups": {"launcher": 1, "worker": {"replicas": 2, "pod": {"spec": SSHD}}},
        "policy": {"restart": "never", "deadline": "2m"},
        "pod": pod,
        **fields,
    }


WAITS = """
for host in $(cut -d ' ' -f 1 /etc/mpi/hostfile); do
    until getent hosts $host; do sleep 0.2; done
done
exec "$@"
"""
"""Workers that are ready may have no name yet; these jobs have no second try."""


def mpirun(*words: str) -> list[str]:
    """mpirun of Open MPI 4 as an image has it whose ssh_config knows hosts of no run."""
    ssh = "-o ConnectionAttempts=60 -o StrictHostKeyChecking=no"
    own = ["--allow-run-as-root", "--mca", "plm_rsh_args", ssh, "-x", "ALLABOARD_RUN", "-x", "ENDS"]
    return ["sh", "-c", WAITS, "sh", "/usr/bin/mpirun", *own, *words]


needs_mpirun = pytest.mark.skipif(
    not all(shutil.which(name, path="/usr/bin:/usr/sbin") for name in ("sshd", "ssh", "mpirun")),
    reason="sshd, ssh and mpirun are not all installed on this machine",
)


@needs_mpirun
@pytest.mark.parametrize("engine", ENGINES)
def test_mpirun_reaches_the_workers_by_ssh(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str
) -> None:
    """Its ranks run where the workers are, with those variables alone that mpirun hands on."""
    job = an_mpi_job(engine, pod, mpirun("python3", "-c", RANKS), environment={"SAID": "no", "ENDS": "0"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab("run", "job.yaml", "--key", "k", "--json", code=None).json
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    run, found = body["run"], sorted(line["text"] for line in lines if line["text"].startswith("rank"))
    assert body["state"] == "succeeded", "\n".join(f"{line['member']}: {line['text']}" for line in lines)
    host = {"jobset": f"{run}-worker-{{0}}-0", "trainjob": f"{run}-node-0-{{0}}"}[engine]
    assert found == [f"rank {n} of 4 at {host.format(n // 2)} told {run} None" for n in range(4)]
    assert {line["member"] for line in lines if line["text"].startswith("rank")} == {"launcher-0"}
    assert [(m["group"], m["index"], m["rank"]) for m in body["members"]] == [
        ("launcher", 0, 0),
        ("worker", 0, 1),
        ("worker", 1, 2),
    ]
    assert body["members"][0]["phase"] == "succeeded"


def a_runtime_of_mpi(name: str, namespace: str, pod: dict[str, Any], *, works: bool) -> dict[str, Any]:
    """As Trainer ships them, for members that are root: ssh refuses root's key with the mode that Trainer
    gives it, and the launcher takes a copy.
    """
    folder = "/etc/mpi-ssh"
    config = f"{_BEFORE} && echo AuthorizedKeysFile {folder}/authorized_keys >> /etc/ssh/sshd_config"
    image = {**SSHD["initContainers"][0], "command": ["sh", "-c", config]}

    def a_job(name: str, labels: dict[str, str], command: list[str], **fields: Any) -> dict[str, Any]:
        main = {"name": "node", "image": IMAGE, "command": command, "volumeMounts": _MOUNTS}
        spec = {**pod["spec"], "containers": [main], "initContainers": [image], "volumes": SSHD["volumes"]}
        template = {"spec": {"template": {"spec": {**spec, "restartPolicy": "Never"}}, "backoffLimit": 0}}
        return {"name": name, "template": {"metadata": {"labels": labels}, **template}, **fields}

    launcher = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    ready = [{"name": "node", "status": "Ready"}]
    jobs = [
        a_job("node", {}, ["/usr/sbin/sshd", "-De"]),
        a_job("launcher", launcher, ["false"], dependsOn=ready),
    ]
    of_mpi = {"mpiImplementation": "OpenMPI", "sshAuthMountPath": folder, "runLauncherAsNode": works}
    spec = {
        "network": {"publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
        "replicatedJobs": jobs,
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"mlPolicy": {"numNodes": 1, "mpi": of_mpi}, "template": {"spec": spec}},
    }


@needs_mpirun
@pytest.mark.parametrize("works", [True, False])
def test_mpirun_of_a_runtime_of_the_cluster(
    ab: Terminal, plane: ControlPlane, namespace: str, pod: dict[str, Any], tmp_path: Path, works: bool
) -> None:
    """With the numbers of the job ranks run on both workers, and on the launcher where it is a node."""
    plane.api.create(a_runtime_of_mpi("ours", namespace, pod, works=works))
    own = {"runtimeRef": {"kind": "TrainingRuntime", "name": "ours"}}
    key = "install -m 600 /etc/mpi-ssh/id_rsa /run/sshd/key\n"
    starts, told = mpirun("python3", "-c", RANKS), "-o ConnectionAttempts"
    command = [word.replace(told, f"-o IdentityFile=/run/sshd/key {told}") for word in starts]
    command[2] = key + command[2]
    job = {
        "name": "digits",
        "framework": "mpi",
        "engine": "trainjob",
        "processes_per_member": 2,
        "groups": {"launcher": 1, "worker": 2},
        "command": command,
        "environment": {"SAID": "no", "ENDS": "0"},
        "engine_spec": {**own, **({"runLauncherAsWorker": True} if works else {})},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab("run", "job.yaml", "--key", "k", "--json", code=None).json
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    run, ranks = body["run"], [line["text"] for line in lines if line["text"].startswith("rank")]
    assert body["state"] == "succeeded", "\n".join(f"{line['member']}: {line['text']}" for line in lines)
    hosts = [f"{run}-node-0-0", f"{run}-node-0-1", *([f"{run}-launcher-0-0"] if works else [])]
    assert sorted(line.split(" at ")[1].split()[0] for line in ranks) == sorted(hosts * 2)
    assert [(m["group"], m["index"], m["rank"]) for m in body["members"]] == [
        ("launcher", 0, 0),
        ("worker", 0, 1),
        ("worker", 1, 2),
    ]


@needs_mpirun
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_of_mpi_fails_with_its_launcher(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, engine: str
) -> None:
    job = an_mpi_job(engine, pod, mpirun("python3", "-c", RANKS), environment={"SAID": "no", "ENDS": "3"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    said = ab("run", "job.yaml", "--key", "k", "--json", code=1).json
    assert said["state"] == "failed" and said["restarts"] == 0
    launcher, *workers = said["members"]
    assert (launcher["phase"], launcher["exit_code"]) == ("failed", 3)
    assert {m["exit_code"] for m in workers} <= {None, 0, 255}, "sshd, which the end removes"
    assert any("exit code: 3" in str(d) or "exited with 3" in str(d) for d in said["diagnoses"]), said


def test_a_submitter_of_mpi_as_a_jobset_has_one_role_more_and_the_key_goes_with_the_job(
    plane: ControlPlane, namespace: str, tmp_path: Path, pod: dict[str, Any]
) -> None:
    def may(role: str) -> None:
        plane.api.apply([*yaml.safe_load_all(rbac.manifest(role, namespace))])

    may("submitter")
    account = plane.kubeconfig_for_account(namespace, "allaboard-submitter")
    ab = Terminal.on(account, namespace, tmp_path)
    job = an_mpi_job("jobset", pod, ["sleep", "600"], policy={"restart": "never"})
    job["groups"]["worker"] = {"replicas": 1, "command": ["sleep", "600"]}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    words = ("run", "job.yaml", "--key", "k", "--detach", "--json")
    assert 'cannot create resource "secrets"' in ab(*words, code=None).json["error"]["message"]
    assert "allaboard cluster --rbac mpi" in ab("preflight", "job.yaml", code=None).out
    may("mpi")
    assert "secrets" not in ab("preflight", "job.yaml", "--json", code=None).out
    run = ab(*words).json["run"]
    ab.until_it_runs(run)
    (secret,) = plane.api.list("v1", "Secret", namespace)
    assert [owner["name"] for owner in secret["metadata"]["ownerReferences"]] == [run]
    private = secret["data"]["ssh-privatekey"]
    beside = [*plane.api.list("v1", "ConfigMap", namespace), *plane.api.list("v1", "Event", namespace)]
    assert private not in json.dumps(beside)
    again = ab(*words).json
    assert plane.api.list("v1", "Secret", namespace)[0]["data"]["ssh-privatekey"] == private, again
    ab("stop", run)
    ab("delete", run)
    until("the key to be gone", lambda: plane.api.list("v1", "Secret", namespace) == [], 60)
