"""Each kind of job on a real cluster, with members that are real processes: its operator tells them what
`Engine.environment` says, and the job ends as they do.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.checking.job import require_valid
from allaboard.engines import ENGINES, engine_of
from allaboard.engines.base import Address, Place
from allaboard.engines.kubeflow import KubeflowEngine
from allaboard.runs.layout import Layout, lay_out
from tests.cluster.api import until
from tests.cluster.components.training_operator import KUBECTL
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, ROOT, Terminal

OWN = "allaboard.test/engines"
EXAMPLES = ROOT / "dags_examples" / "engines"
SHOWS = """
import json, os, sys
print(json.dumps(dict(os.environ)), flush=True)
sys.exit(int(sys.argv[1]))
"""
PORTS = {"tensorflow": 2222, "xgboost": 9999, "paddle": 36543, "jax": 6666}
GROUPS: dict[str, dict[str, Any]] = {
    "tensorflow": {"chief": 1, "worker": 2, "ps": 1},
    "xgboost": {"master": 1, "worker": 2},
    "paddle": {"worker": 3},
    "paddle, with servers": {"master": 1, "worker": 1},
    "jax": {"worker": 3},
}

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def pod(plane_of_nodes: ControlPlane) -> Iterator[dict[str, Any]]:
    """What brings members to a node of these tests' own."""
    with own_node(plane_of_nodes) as pod:
        yield pod


@contextmanager
def own_node(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    mark = f"engines-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "16", "memory": "32Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane, [spec], code=CODE):
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


def a_kind(name: str, code: int, pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "digits",
        "framework": name.partition(",")[0],
        "groups": GROUPS[name],
        "command": ["python", "-c", SHOWS, str(code)],
        "policy": {"restart": "never", "clean_pods": "none"},
        "pod": pod,
    }


def services(layout: Layout, namespace: str) -> Place:
    """Where the operator's Services put the members. It tells TensorFlow whole names."""
    port, rest = PORTS[layout.framework], f".{namespace}.svc" if layout.framework == "tensorflow" else ""
    return {m.name: Address(f"{layout.name}-{m.name}{rest}", port) for m in layout.members}


@pytest.mark.parametrize("name", GROUPS)
def test_members_get_what_the_engine_says(
    ab: Terminal, namespace: str, pod: dict[str, Any], tmp_path: Path, name: str
) -> None:
    job = a_kind(name, 0, pod)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded"
    layout = lay_out(require_valid(job), engine_of(require_valid(job)), body["run"])
    engine = ENGINES[layout.engine]
    assert isinstance(engine, KubeflowEngine)
    assert [m["rank"] for m in body["members"]] == [m.rank for m in layout.members]
    for member in layout.members:
        (line,) = ab("logs", body["run"], member.name, "--json").out.splitlines()
        real = json.loads(json.loads(line)["text"])
        said = engine.environment(layout, member, services(layout, namespace))
        told = {name: value for name, value in real.items() if name in engine.INJECTED}
        if layout.framework == "paddle" and (member.name,) in engine.listeners(layout):
            # Where the others meet it is told its own address.
            own = told.pop("POD_IP_DUMMY")
            assert told.pop("PADDLE_MASTER") == f"{own}:36543"
            del said["PADDLE_MASTER"]
        assert told == said, member.name
        assert real["ALLABOARD_MEMBER"] == member.name


@pytest.mark.parametrize("name", GROUPS)
def test_a_job_fails_with_its_members(ab: Terminal, pod: dict[str, Any], tmp_path: Path, name: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(a_kind(name, 3, pod)))
    said = ab("run", "job.yaml", "--key", "k", "--json", code=1)
    assert said.json["state"] == "failed"
    assert {m["exit_code"] for m in said.json["members"]} <= {3, None}
    assert any("exit code: 3" in str(d) or "exited with 3" in str(d) for d in said.json["diagnoses"])


@pytest.mark.parametrize(
    ("example", "metrics"),
    [
        ("xgboost", {"accuracy": 1.0}),
        ("jax", {"slope": 3.0, "intercept": 0.5}),
        ("paddle", {"slope": 3.0, "intercept": 0.5}),
    ],
)
def test_the_examples_train_with_their_frameworks(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, example: str, metrics: dict[str, float]
) -> None:
    if example != "paddle":  # whose script needs none
        pytest.importorskip(example)
    job = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    (script,) = job["code"]
    shutil.copy(EXAMPLES / script, tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "pod": pod}))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded" and body["metrics"] == metrics
    assert body["progress"]["step"] == body["progress"]["total"]


def test_a_kind_is_stopped_suspended_and_resumed_like_any_other(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path
) -> None:
    job = a_kind("xgboost", 0, pod) | {"command": ["sleep", "600"]}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    run = ab("run", "job.yaml", "--key", "k", "--detach", "--json").json["run"]
    ab.until_it_runs(run)
    assert ab("suspend", run, "--json").json["state"] == "suspended"
    ab("resume", run)
    ab.until_it_runs(run)
    assert ab("stop", run, "--json").json["state"] == "stopped"
    assert {m["phase"] for m in ab.seen(run)["members"]} == {"deleted"}


# MPIJob. A cluster serves one of its versions: the shared one has the MPI Operator, another plane serves v1.


@pytest.fixture(scope="module", params=["mpijob", "mpijob-v1"])
def mpi(
    request: pytest.FixtureRequest,
    plane_of_nodes: ControlPlane,
    new_plane_in: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, ControlPlane, dict[str, Any]]]:
    """The engine, a plane that serves its version, and what brings members to a node there."""
    if request.param == "mpijob":
        if reason := plane_of_nodes.lacks("mpi-operator"):
            pytest.skip(reason)
        with own_node(plane_of_nodes) as pod:
            yield request.param, plane_of_nodes, pod
        return
    parts = ("training-operator", "kube-scheduler", "kube-controller-manager")
    folder = tmp_path_factory.mktemp("mpi-v1")
    with new_plane_in(folder, *parts, flags={"training-operator": KUBECTL}) as plane, own_node(plane) as pod:
        yield request.param, plane, pod


@pytest.fixture
def ab_mpi(mpi: tuple[str, ControlPlane, dict[str, Any]], tmp_path: Path) -> Iterator[Terminal]:
    plane, name = mpi[1], f"mpi-{secrets.token_hex(3)}"
    plane.make_namespace(name)
    yield Terminal.on(plane.kubeconfig, name, tmp_path)
    plane.remove_namespace(name)


LAUNCHER = """
import json, os, sys
told = {**os.environ, "hostfile": open("/etc/mpi/hostfile").read()}
print(json.dumps(told), flush=True)
sys.exit(int(sys.argv[1]))
"""


def an_mpijob(mpi: tuple[str, Any, dict[str, Any]], command: list[str], **fields: Any) -> dict[str, Any]:
    """Workers that wait as those of v1 do: an image without sshd has nothing else to run."""
    return {
        "name": "digits",
        "framework": "mpi",
        "engine": mpi[0],
        "processes_per_member": 2,
        "command": command,
        "groups": {"launcher": 1, "worker": {"replicas": 2, "command": ["sleep", "600"]}},
        "policy": {"restart": "never", "deadline": "5m"},
        "pod": mpi[2],
        **fields,
    }


def test_the_launcher_gets_what_the_engine_says(
    mpi: tuple[str, ControlPlane, dict[str, Any]], ab_mpi: Terminal, tmp_path: Path
) -> None:
    job = an_mpijob(mpi, ["python", "-c", LAUNCHER, "0"])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab_mpi("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded"
    layout, engine = lay_out(require_valid(job), ENGINES[mpi[0]], body["run"]), ENGINES[mpi[0]]
    assert [(m["group"], m["index"], m["rank"]) for m in body["members"]] == [
        (m.group, m.index, m.rank) for m in layout.members
    ]
    (line,) = ab_mpi("logs", body["run"], "launcher-0", "--json").out.splitlines()
    real = json.loads(json.loads(line)["text"])
    assert isinstance(engine, KubeflowEngine)
    said = engine.environment(layout, layout.members[0], {})
    assert {name: value for name, value in real.items() if name in {*engine.INJECTED, *said}} == said
    assert real["ALLABOARD_MEMBER"] == "launcher-0"
    ending = f".{layout.name}.{ab_mpi.environ['ALLABOARD_NAMESPACE']}.svc" if mpi[0] == "mpijob" else ""
    hosts = {m.name: f"{layout.name}-{m.name}{ending}" for m in layout.members}
    assert {"/etc/mpi/hostfile": real["hostfile"]} == engine.files(layout, hosts)


def test_the_launcher_fails_the_job(
    mpi: tuple[str, ControlPlane, dict[str, Any]], ab_mpi: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(an_mpijob(mpi, ["python", "-c", LAUNCHER, "3"])))
    body = ab_mpi("run", "job.yaml", "--key", "k", "--json", code=1).json
    assert body["state"] == "failed" and body["restarts"] == 0
    exits = {f"{m['group']}-{m['index']}": m["exit_code"] for m in body["members"]}
    assert exits["launcher-0"] == 3
    assert any("exited with 3" in str(d) or "exit code: 3" in str(d) for d in body["diagnoses"])


def test_an_mpijob_is_stopped_suspended_and_resumed_like_any_other(
    mpi: tuple[str, ControlPlane, dict[str, Any]], ab_mpi: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(an_mpijob(mpi, ["sleep", "600"])))
    run = ab_mpi("run", "job.yaml", "--key", "k", "--detach", "--json").json["run"]
    ab_mpi.until_it_runs(run)
    assert {m["phase"] for m in ab_mpi.seen(run)["members"]} == {"running"}
    ab_mpi("suspend", run)
    until("its members to be gone", lambda: {m["phase"] for m in ab_mpi.seen(run)["members"]} == {"deleted"})
    assert ab_mpi.state(run) == "suspended"
    ab_mpi("resume", run)
    ab_mpi.until_it_runs(run)
    assert ab_mpi("stop", run, "--json").json["state"] == "stopped"
    assert {m["phase"] for m in ab_mpi.seen(run)["members"]} == {"deleted"}


SSHD = (
    "mkdir -p /run/sshd /etc/ssh && touch /etc/ssh/sshd_config && ssh-keygen -A && "
    "exec /usr/sbin/sshd -De -o StrictModes=no"
)
"""What a worker's image brings with it: keys of its own, and a folder for sshd."""
RANKS = """
import os, socket
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "of", os.environ["OMPI_COMM_WORLD_SIZE"],
      "at", socket.gethostname(), "told", os.environ.get("ALLABOARD_RUN"), os.environ.get("SAID"), flush=True)
"""


@pytest.mark.needs("mpi-operator")
def test_mpirun_reaches_the_workers_by_ssh(ab: Terminal, pod: dict[str, Any], tmp_path: Path) -> None:
    """Its ranks run where the workers are, with those variables alone that mpirun hands on."""
    if not all(shutil.which(name, path="/usr/bin:/usr/sbin") for name in ("sshd", "ssh", "mpirun")):
        pytest.skip("sshd, ssh and mpirun are not all installed on this machine")
    up = "getent hosts {0}-worker-0.{0} && getent hosts {0}-worker-1.{0}".format("$ALLABOARD_RUN")
    start = f"for n in $(seq 100); do {up} && break; sleep 0.2; done"
    ssh = "-o ConnectionAttempts=60 -o StrictHostKeyChecking=no"
    mpirun = f"/usr/bin/mpirun --allow-run-as-root --mca plm_rsh_args '{ssh}' -x ALLABOARD_RUN"
    ranks = 'python3 -c "$RANKS"'
    job = an_mpijob(("mpijob", ab, pod), ["sh", "-c", f"{start}; {mpirun} {ranks}"])
    job["processes_per_member"] = 1
    job["groups"]["worker"]["command"] = ["sh", "-c", SSHD]
    job["policy"]["deadline"] = "2m"
    job["environment"] = {"RANKS": RANKS, "SAID": "not handed on"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab("run", "job.yaml", "--key", "k", "--json", code=None).json
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    run, found = body["run"], sorted(line["text"] for line in lines if line["text"].startswith("rank"))
    assert body["state"] == "succeeded", "\n".join(f"{line['member']}: {line['text']}" for line in lines)
    assert found == [f"rank {n} of 2 at {run}-worker-{n} told {run} None" for n in range(2)]
    assert {line["member"] for line in lines if line["text"].startswith("rank")} == {"launcher-0"}
