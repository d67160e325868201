"""What people run, in images that have neither allaboard nor the code: scripts, functions, repositories,
folders of a bucket, packages. Members are real processes, and so are the servers of code and packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.components import s3
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import Terminal
from tests.core.backends.local.git_server import Repository
from tests.core.backends.local.test_setup import an_index, wheel
from tests.core.inside.containers import python_of

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]
TOKEN = "tok-9c1e-very-secret"
MEETS = """\
import importlib.util, os, socket, sys, time
assert importlib.util.find_spec("allaboard") is None, "this image has allaboard"
place, end = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), time.monotonic() + 120
if os.environ["RANK"] == "0":
    server = socket.create_server(("", place[1]))
    others = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
    for other in others:
        other.recv(1)  # until it is done
while os.environ["RANK"] != "0":
    try:
        other = socket.create_connection(place, timeout=5)
        break
    except OSError:
        assert time.monotonic() < end
        time.sleep(0.2)
"""
"""Rank 0 goes on when the others are done: the operator ends them with it."""
TRAINS = (
    MEETS
    + """\
print("python", sys.version.split()[0], "rank", os.environ["RANK"], "given", sys.argv[1:], flush=True)
for step in (1, 2, 3):
    print("step %d/3 loss %.3f" % (step, 1 / step), flush=True)
"""
)
PACKED = (
    MEETS
    + """\
import json
sys.path.insert(0, os.getcwd())
from lib.version import VERSION
line = {"version": VERSION, "at": os.path.basename(os.getcwd())}
try:
    import tiny
    line["tiny"] = tiny.VERSION
except ImportError:
    pass
assert "ALLABOARD_CODE_TOKEN" not in os.environ
print("found", json.dumps(line), flush=True)
"""
)


RANKS = """\
import os, socket, sys
try:
    import allaboard.inside
    sys.exit("this image has allaboard")
except ImportError:
    pass
import tiny
from lib.version import VERSION
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "of", os.environ["OMPI_COMM_WORLD_SIZE"],
      "at", socket.gethostname(), "in", os.path.basename(os.getcwd()), "version", VERSION,
      "tiny", tiny.VERSION, "python", sys.version[:3], flush=True)
assert "ALLABOARD_CODE_TOKEN" not in os.environ
"""
SSHD = shutil.which("sshd", path=f"/usr/sbin:{os.environ['PATH']}")
STARTS_SSHD = """\
#!/bin/sh
grep -q ^sshd: /etc/passwd || echo sshd:x:199:65534::/run/sshd:/bin/false >> /etc/passwd
mkdir -p /run/sshd /etc/ssh && touch /etc/ssh/sshd_config && ssh-keygen -q -A &&
exec /opt/code/ssh/real/sshd -o StrictModes=no "$@"
"""
"""An image of MPI has keys of its own, and a user and a folder for sshd."""


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnNodes]:
    """Their Python images have Python 3.8 with pip, sshd where this machine has it, and nothing else."""
    environment = tmp_path_factory.mktemp("image") / "python3.8"
    python = python_of("3.8") / "bin" / "python3.8"
    subprocess.run([python, "-m", "venv", environment], check=True)
    ssh = tmp_path_factory.mktemp("ssh")
    (ssh / "sshd").write_text(STARTS_SSHD)
    (ssh / "sshd").chmod(0o755)
    (ssh / "real").mkdir()
    if SSHD is not None:
        shutil.copy(SSHD, ssh / "real" / "sshd")
    with own_nodes(
        plane_of_nodes,
        {"cpu": "8"},
        prefix="code",
        python=environment / "bin" / "python3",
        code={"ssh": ssh},
    ) as nodes:
        yield nodes


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path) -> Terminal:
    nodes.serve(namespace)
    return Terminal.on(plane.kubeconfig, namespace, tmp_path)


@pytest.fixture
def host(nodes: OwnNodes) -> str:
    """This machine's address, for pods and for the client."""
    return str(nodes.kubelet.facts()["host"])


def job(ab: Terminal, **fields: Any) -> str:
    body = {"name": "coded", "workers": 2, "policy": {"restart": "never", "attempts": 1}, **fields}
    body = {name: value for name, value in body.items() if value is not None}
    (ab.folder / "job.yaml").write_text(yaml.safe_dump(body))
    return "job.yaml"


def found(ab: Terminal, run: str) -> list[Any]:
    """What the members found, by member."""
    lines = [json.loads(line) for line in ab("logs", run, "--json").out.splitlines()]
    told = {line["member"]: line["text"] for line in lines if line["text"].startswith("found ")}
    return [json.loads(told[member].removeprefix("found ")) for member in sorted(told)]


def test_a_script_and_its_words_without_a_job_file(ab: Terminal) -> None:
    (ab.folder / "train.py").write_text(TRAINS)
    said = ab("run", "train.py", "-w", "2", "--json", "--", "--lr", "3e-4").json
    assert said["state"] == "succeeded" and said["flags"] == [], said
    assert said["progress"]["step"] == said["progress"]["total"] == 3
    logs = ab("logs", said["run"]).out
    assert all(f"python 3.8.18 rank {rank} given ['--lr', '3e-4']" in logs for rank in (0, 1)), logs


FUNCTION = """\
import sys
from allaboard import TrainingJob, run

def train(lr: float, steps: int = 2) -> dict:
    import os
    try:
        import allaboard.inside  # "/allaboard" is a folder of each pod, which is no package
        raise SystemExit("this image has allaboard")
    except ImportError:
        pass
    for step in range(1, steps + 1):
        print("step %d/%d loss %.3f" % (step, steps, lr / step), flush=True)
    return {"loss": lr / steps, "members": int(os.environ["WORLD_SIZE"])}

job = TrainingJob.of_function(train, {"lr": 0.5}, workers=2, image=sys.argv[1])
outcome = run(job, backend="kubernetes")
print(outcome.state, outcome.metrics, outcome.message, *(d.summary for d in outcome.diagnoses))
sys.exit(outcome.exit_code)
"""


def test_a_function(ab: Terminal) -> None:
    (ab.folder / "own.py").write_text(FUNCTION)
    words = [sys.executable, "own.py", ab.environ["ALLABOARD_IMAGE"]]
    done = subprocess.run(
        words, cwd=ab.folder, env=ab.environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout and "'loss': 0.25" in done.stdout and "'members': 2" in done.stdout


@pytest.fixture
def secret(ab: Terminal, plane: ControlPlane, namespace: str) -> str:
    """A password, in the namespace for members and on this machine for the client."""
    about = {"name": "git-token", "namespace": namespace}
    plane.api.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": {"token": TOKEN}}
    )
    folder = Path(ab.environ["ALLABOARD_HOME"]) / "secrets" / "git-token"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "token").touch(0o600)
    (folder / "token").write_text(TOKEN)
    return "git-token"


def test_a_private_repository_with_locked_packages(
    ab: Terminal, secret: str, host: str, plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir()
    repository = Repository(tmp_path / "server")
    commit = repository.push({"train.py": PACKED, "lib/__init__.py": "", "lib/version.py": "VERSION = 7\n"})
    digest = wheel(tmp_path / "index", "1.2")
    with repository.smart(TOKEN, host) as url, an_index(tmp_path / "index", host) as index:
        file = job(
            ab,
            command=["python", "train.py"],
            code={"git": url, "ref": "main", "secret": secret},
            packages={"install": [f"tiny==1.2 --hash=sha256:{digest}"], "index": index},
            environment={"PIP_TRUSTED_HOST": host},  # its server has no certificate
        )
        said = ab("run", file, "--json", code=None).json
    logs = ab("logs", said["run"]).out
    assert said["state"] == "succeeded", logs
    assert found(ab, said["run"]) == [{"version": 7, "at": f"code-{commit[:12]}", "tiny": "1.2"}] * 2
    objects = json.dumps(
        [plane.api.list("v1", "ConfigMap", namespace), plane.api.list("v1", "Pod", namespace)]
    )
    assert TOKEN not in objects + logs + json.dumps(said)


@pytest.mark.needs("s3")
def test_a_folder_packed_into_a_bucket(ab: Terminal, plane: ControlPlane, namespace: str) -> None:
    """Members read it with the keys of a Secret; their image has neither allaboard nor boto3."""
    s3.give(plane, namespace, namespace)
    ab.environ.update(s3.variables(plane))
    source = ab.folder / "src"
    (source / "lib").mkdir(parents=True)
    (source / "train.py").write_text(PACKED)
    (source / "lib" / "__init__.py").touch()
    (source / "lib" / "version.py").write_text("VERSION = 8\n")
    file = job(
        ab,
        command=["python", "train.py"],
        code={"folder": "src", "store": f"s3://{namespace}/team"},
        secrets=[{"name": "store", "env": True}],
    )
    said = ab("run", file, "--json", code=None).json
    assert said["state"] == "succeeded", ab("logs", said["run"]).out
    versions = [each["version"] for each in found(ab, said["run"])]
    assert versions == [8, 8]


@pytest.mark.needs("mpi-operator")
@pytest.mark.skipif(
    SSHD is None or shutil.which("mpirun", path="/usr/bin") is None,
    reason="sshd and mpirun are not both installed on this machine",
)
@pytest.mark.parametrize("engine", ["mpijob", pytest.param("jobset", marks=pytest.mark.thorough)])
def test_ranks_of_mpi_have_the_code_and_the_packages(
    engine: str, ab: Terminal, secret: str, host: str, tmp_path: Path
) -> None:
    """They start in sessions of sshd on other members, whose installation takes a while."""
    (tmp_path / "server").mkdir()
    repository = Repository(tmp_path / "server")
    commit = repository.push({"train.py": RANKS, "lib/__init__.py": "", "lib/version.py": "VERSION = 9\n"})
    digest = wheel(tmp_path / "index", "1.2")
    mpirun = ["/usr/bin/mpirun", "--allow-run-as-root", "--mca", "plm_rsh_args"]
    with repository.smart(TOKEN, host) as url, an_index(tmp_path / "index", host) as index:
        file = job(
            ab,
            engine=engine,
            framework="mpi",
            workers=None,
            processes_per_member=1,
            # The interpreter of these images may need it.
            command=[*mpirun, "-o StrictHostKeyChecking=no", "-x", "LD_LIBRARY_PATH", "python", "train.py"],
            groups={"launcher": 1, "worker": {"replicas": 2, "command": ["/opt/code/ssh/sshd", "-De"]}},
            code={"git": url, "ref": "main", "secret": secret},
            packages={"install": [f"tiny==1.2 --hash=sha256:{digest}"], "index": index},
            environment={"PIP_TRUSTED_HOST": host},
            policy={"restart": "never", "deadline": "90s"},
        )
        said = ab("run", file, "--json", code=None).json
    logs = ab("logs", said["run"]).out
    assert said["state"] == "succeeded" and said["restarts"] == 0, logs
    ranks = sorted(line.partition("rank ")[2] for line in logs.splitlines() if "[launcher-0] rank " in line)
    here = f"in code-{commit[:12]} version 9 tiny 1.2 python 3.8"
    ending = {"mpijob": "", "jobset": "-0"}[engine]
    assert ranks == [f"{n} of 2 at {said['run']}-worker-{n}{ending} {here}" for n in range(2)], logs
    assert TOKEN not in logs
