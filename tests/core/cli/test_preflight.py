"""``allaboard preflight`` and ``allaboard cluster``: what they say to people and to machines, and their
exit codes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from allaboard.backends.kubernetes.client import protocol, resources
from allaboard.backends.kubernetes.client.errors import ApiError
from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.cli import main
from tests.core.backends.kubernetes.answers import Answers, Json
from tests.core.backends.kubernetes.preflight.test_gather import OBJECTS, operator_answers
from tests.core.backends.kubernetes.scripted import HASTY
from tests.core.cli.terminal import Terminal

KINDS = ["kubeflow.org/v1/PyTorchJob", "scheduling.x-k8s.io/v1alpha1/PodGroup"]
BY_PATH = {(r.api_version, r.plural): r for r in (*resources.KNOWN.values(), *resources.job_kinds())}


@contextmanager
def served(answers: Answers, folder: Path) -> Iterator[str]:
    """`Answers` behind HTTP, and the kubeconfig that leads to it."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def _say(self, body: Any, status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self, body: Json | None) -> Any:
            url = urlsplit(self.path)
            if url.path in ("/version", "/apis"):
                return answers.raw("GET", url.path)
            parts = url.path.strip("/").split("/")
            version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
            rest = parts[2:] if parts[0] == "api" else parts[3:]
            namespace = rest[1] if rest[0] == "namespaces" and len(rest) > 2 else None
            rest = rest[2:] if namespace else rest
            resource = BY_PATH.get((version, rest[0])) or Resource(
                version.partition("/")[0], version.partition("/")[2], rest[0], "SelfSubjectReview", False
            )
            if body is not None:
                return answers.create(resource, body, namespace, dry_run="dryRun=All" in url.query)
            if len(rest) > 1:
                return answers.get(resource, rest[1], namespace)
            items, _ = answers.list(resource, namespace)
            most = dict(parse_qsl(url.query)).get("limit")
            return {"items": items[: int(most)] if most else items, "metadata": {"resourceVersion": "1"}}

        def _do(self, body: Json | None = None) -> None:
            try:
                self._say(self._answer(body))
            except ApiError as error:
                status = {"kind": "Status", "message": error.message, "code": error.status, "reason": "x"}
                self._say({**status, "details": {"kind": "thing", "name": "it"}}, error.status)

        def do_GET(self) -> None:
            self._do()

        def do_POST(self) -> None:
            self._do(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "research"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield str(path)
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Answers, str]]:
    answers = Answers(KINDS, OBJECTS, refuses=operator_answers)
    with served(answers, tmp_path) as kubeconfig:
        yield answers, kubeconfig


# --- on a cluster


def test_a_job_that_can_run(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    said = ab("preflight", ab.job(image="train:1"), "--kubeconfig", cluster[1])
    assert said.code == 0, said.text
    assert said.out.startswith("digits on namespace research of http://127.0.0.1:")
    assert "  ok       rbac" in said.out and "fails" not in said.out
    assert said.out.rstrip().endswith("nothing is in the way of digits")


def test_a_job_that_cannot_exits_2_and_says_what_to_do(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    job = ab.job(image="train:1", secrets=[{"name": "aws", "env": True}])
    said = ab("preflight", job, "--backend", "kubernetes", ALLABOARD_KUBECONFIG=cluster[1])
    assert said.code == 2
    assert "fails    secrets" in said.out and "secret aws is not there in research" in said.out
    assert "to do: create it in research" in said.out
    assert said.out.rstrip().endswith("digits would not run: a check fails")


def test_in_json_it_is_one_object(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    job = ab.job(image="train:1", secrets=[{"name": "aws", "env": True}])
    said = ab("preflight", job, "--kubeconfig", cluster[1], "--json")
    assert said.code == 2 and set(said.json) == {"checks"}
    for check in said.json["checks"]:
        assert set(check) == {"id", "ok", "severity", "summary", "evidence", "fix"}
    assert [c["id"] for c in said.json["checks"] if c["ok"] is False] == ["secrets"]


def test_a_warning_stops_nothing(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    cluster[0].kinds = KINDS[:1]
    said = ab("preflight", ab.job(image="train:1", workers=2), "--kubeconfig", cluster[1])
    assert said.code == 0 and "warning  gang" in said.out
    assert said.out.rstrip().endswith("nothing is in the way of digits (1 warning)")


def test_a_job_that_no_cluster_can_run(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    said = ab("preflight", ab.job(), "--kubeconfig", cluster[1])
    assert said.code == 2 and "fails    job" in said.out and "image" in said.out


def test_a_cluster_that_does_not_answer(
    ab: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, whose patience is short."""
    with served(Answers(KINDS, OBJECTS), tmp_path) as kubeconfig:
        pass
    monkeypatch.setattr(protocol, "Patience", lambda **_: HASTY)
    monkeypatch.setenv("ALLABOARD_HOME", ab.environ["ALLABOARD_HOME"])
    job = str(ab.folder / ab.job(image="train:1"))
    code = main(["preflight", job, "--kubeconfig", kubeconfig])
    assert code == 5 and "Traceback" not in capfd.readouterr().err


def test_a_job_file_that_is_wrong(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    said = ab("preflight", ab.write("job.yaml", "name: digits\nworkerz: 3\n"), "--kubeconfig", cluster[1])
    assert said.code == 2 and "workerz" in said.err


# --- on this machine


def test_here_too(ab: Terminal) -> None:
    said = ab("preflight", ab.job())
    assert said.code == 0 and "it can run on this machine" in said.out
    assert ab.runs() == [], "nothing is started"


def test_every_problem_of_this_machine_at_once(ab: Terminal) -> None:
    job = ab.job(command=["nonsense-program"], secrets=[{"name": "aws", "env": True}])
    said = ab("preflight", job, "--json")
    assert said.code == 2
    paths = {check["evidence"][0]["field"] for check in said.json["checks"]}
    assert paths == {"command[0]", "secrets[0]"}


# --- what a cluster has


def test_the_page_of_a_cluster(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    said = ab("cluster", "--kubeconfig", cluster[1])
    assert said.code == 0, said.text
    assert "Kubernetes v1.36.3, namespace research" in said.out
    assert "installed, alive (kubeflow.org v1)" in said.out and "its webhook answers" in said.out
    assert "Volcano                               not installed" in said.out
    assert "Volcano, v1.15.1, as of 2026-11\n    with Helm:\n      helm install volcano" in said.out
    assert "or with kubectl:\n      kubectl apply -f https://" in said.out and "oc apply" not in said.out
    assert "1 of 1 ready, 4 nvidia.com/gpu on 1 of them" in said.out


def test_a_cluster_in_json(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    facts = ab("cluster", "--kubeconfig", cluster[1], "--facts", ALLABOARD_IMAGE="lab/train:7").json
    assert facts["version"] == 1 and "kubeflow.org/v1/PyTorchJob" in facts["kinds"]
    assert (facts["namespace"], facts["image"]) == ("research", "lab/train:7")
    body = ab("cluster", "--kubeconfig", cluster[1], "--json").json
    assert set(body) == {
        "server", "version", "namespace", "openshift", "components", "operator_gangs", "schedulers", "nodes",
    }  # fmt: skip
    operator = body["components"][0]
    assert set(operator) == {"id", "title", "installed", "versions", "alive", "evidence", "cure", "install"}
    assert (operator["id"], operator["alive"], operator["cure"]) == ("training-operator", True, None)
    kueue = next(component["install"] for component in body["components"] if component["id"] == "kueue")
    assert set(kueue["ways"]) == {"kubectl", "helm", "openshift"} and kueue["checked"].startswith("2026-")


def test_the_page_of_openshift_and_of_what_is_away(ab: Terminal, cluster: tuple[Answers, str]) -> None:
    answers, kubeconfig = cluster
    answers.kinds += [
        "security.openshift.io/v1/SecurityContextConstraints",
        "scheduling.volcano.sh/v1beta1/PodGroup",
    ]
    lease = {"metadata": {"name": "s"}, "spec": {"renewTime": "2026-11-21T10:00:00Z"}}
    answers.objects["volcano-system/leases.coordination.k8s.io"] = [lease]
    said = ab("cluster", "--kubeconfig", kubeconfig)
    assert ", OpenShift, namespace" in said.out and "with OpenShift:\n" in said.out
    assert "kueue/releases/download" not in said.out, "its own way alone"
    assert "Volcano                               installed, does not answer" in said.out
    assert "What does not answer:\n  Volcano: start it again (kubectl -n volcano-system get" in said.out


@pytest.mark.parametrize("role", ["submitter", "viewer"])
def test_roles_are_printed_without_a_cluster(ab: Terminal, role: str) -> None:
    import yaml

    said = ab("cluster", "--rbac", role, "-n", "team-a", KUBECONFIG="/nowhere")
    assert said.code == 0 and said.out.startswith("# What whoever")
    documents = [d for d in yaml.safe_load_all(said.out) if d]
    assert {d["metadata"]["namespace"] for d in documents} == {"team-a"}
    listed = ab("cluster", "--rbac", role, "-n", "team-a", "--json", KUBECONFIG="/nowhere")
    assert listed.json["items"] == documents
