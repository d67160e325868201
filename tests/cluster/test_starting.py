"""Members that do not start, on real nodes: `status` and `run` say why, and what can never start fails."""

from __future__ import annotations

import base64
import copy
import json
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.render.pod_template import merged
from tests.cluster import pki
from tests.cluster.api import Object, until
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, Terminal

OWN = "allaboard.test/starting"
EXITS = ["sh", "-c", "exit 3"]
TOLERATES = [{"key": OWN, "operator": "Exists"}]
MISSING = {"name": "settings", "configMap": {"name": "settings"}}
SOON = 10.0
"""Seconds from when an object or an event of the cluster says it until `allaboard status` does."""

STRATEGIC = "application/strategic-merge-patch+json"

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(300),
]


class Shell(Terminal):
    """A terminal whose jobs bring their members to these tests' own nodes."""

    mark: str

    def job(self, **fields: Any) -> str:
        """A job file; ``spec``: of its pods."""
        spec = {"nodeSelector": {OWN: self.mark}, "tolerations": TOLERATES, **fields.pop("spec", {})}
        given = {"command": ["sleep", "600"], "workers": 1, "image": "alpine", "gang": {"scheduler": "none"}}
        body = {"name": "digits", **given, "pod": {"spec": spec}, **fields}
        file = self.folder / f"job-{secrets.token_hex(3)}.yaml"
        file.write_text(yaml.safe_dump(body))
        return str(file)

    def reason(self, code: str) -> Object:
        """The first diagnosis, once it has this code."""

        def look() -> Object | None:
            said = json.loads(self("status", "digits", "--json").out)
            found: list[Object] = said["diagnoses"]
            return found[0] if found and found[0]["code"] == code else None

        return until(f"the diagnosis {code}", look, timeout=60)


@pytest.fixture(scope="module")
def mark(plane_of_nodes: ControlPlane) -> Iterator[str]:
    mark = f"starting-{secrets.token_hex(3)}"
    size = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    taint = f"{OWN}={mark}:NoSchedule"
    nodes = [NodeSpec(f"{mark}-{n}", size, {OWN: mark}, (taint,)) for n in range(2)]
    with nodes_on(plane_of_nodes, nodes, code=CODE):
        yield mark


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, mark: str, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell.on(plane.kubeconfig, namespace, tmp_path)
    shell.mark = mark
    yield shell


def main(**fields: Any) -> Object:
    return {"containers": [{"name": "pytorch", **fields}]}


@pytest.mark.parametrize(
    ("fields", "code", "words", "retryable"),
    [
        ({"image": "registry.lab/nothing:1"}, "image_not_found", "no such image", False),
        ({"secrets": [{"name": "keys", "env": True}]}, "container_config_missing", "Secret keys does", False),
        ({"secrets": [{"name": "keys", "mount": "/k"}]}, "container_config_missing", "Secret keys", False),
        (
            {"spec": main(envFrom=[{"configMapRef": {"name": "c"}}])},
            "container_config_missing",
            "ConfigMap c does not exist",
            False,
        ),
        (
            {"command": ["pyhton", "x"], "policy": {"backoff_limit": 100}},
            "bad_entrypoint",
            "'pyhton' is not in its image; did you mean 'python'?",
            False,
        ),
        (
            {"spec": {"initContainers": [{"name": "prep", "image": "alpine", "command": EXITS}]}},
            "unknown",
            "init container prep exited with 3",
            False,
        ),
        ({"storage": [{"mount": "/d", "pvc": "none"}]}, "pvc_not_bound", "claim none does not exist", False),
        ({"resources": {"gpu": 64}}, "insufficient_gpu", "asks for 64 nvidia.com/gpu", False),
        ({"resources": {"cpu": 1000}}, "unschedulable_constraints", "asks for 1000 cpu", False),
        ({"resources": {"mig": "1g.10gb"}}, "gpu_not_advertised", "no node offers nvidia.com/mig", False),
        ({"spec": {"nodeSelector": {"moon": "full"}}}, "unschedulable_constraints", "moon=full", False),
        ({"workers": 5, "resources": {"gpu": 1}}, "insufficient_gpu", "4 of its 5 members", False),
        (
            {"gang": {"scheduler": "none", "priority": "nonesuch"}},
            "pod_reference_missing",
            "no PriorityClass with name nonesuch",
            False,
        ),
    ],
)  # fmt: skip
def test_why_a_member_does_not_start_is_said_in_one_sentence(
    ab: Shell, fields: dict[str, Any], code: str, words: str, retryable: bool
) -> None:
    assert ab("run", ab.job(**fields), "--detach").code == 0
    found = ab.reason(code)
    assert words in found["summary"] and "\n" not in found["summary"]
    if code != "unknown":  # an init container is tried some times first
        assert found["retryable"] is retryable
    # It is tried again meanwhile.
    same = re.sub(r"\d+ restarts?", "[0-9]+ restarts?", re.escape(found["summary"]).replace(r"\ ", " "))
    assert re.search(same, ab("status", "digits").out)


def test_an_image_without_a_legal_name_is_refused_before_anything_is_sent(ab: Shell) -> None:
    said = ab("run", ab.job(spec=main(image="UPPER CASE:1")), "--detach", code=2)
    assert "pod.spec.containers[0].image: 'UPPER CASE:1' holds a blank" in said.err


def test_pods_that_a_quota_or_the_namespace_refuses(plane: ControlPlane, ab: Shell, namespace: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": namespace}}
    plane.api.create({**quota, "spec": {"hard": {"requests.cpu": "1"}}})
    ab("run", ab.job(resources={"cpu": 2}), "--detach")
    found = ab.reason("resource_quota_exceeded")
    assert found["retryable"] is False, "more than there is in all"
    plane.api.patch(
        plane.api.get("v1", "Namespace", namespace),
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    ab("run", ab.job(resources={"cpu": 1}, host_network=True), "--detach")
    assert "violates PodSecurity" in ab.reason("pod_security_denied")["summary"]


@pytest.mark.parametrize(
    ("fields", "known", "code", "words"),
    [
        ({"spec": {"tolerations": []}}, "untolerated taint", "unschedulable_constraints", "not tolerated"),
        (
            {"storage": [{"mount": "/d", "pvc": "none"}]},
            '"none" not found',
            "pvc_not_bound",
            "claim none does",
        ),
        (
            {"spec": {"volumes": [MISSING], **main(volumeMounts=[{"name": "settings", "mountPath": "/s"}])}},
            '"settings" not found',
            "container_config_missing",
            "volume settings cannot be mounted, ConfigMap settings does not exist",
        ),
        (
            {"secrets": [{"name": "keys", "mount": "/keys"}]},
            '"keys" not found',
            "container_config_missing",
            "Secret keys does not exist",
        ),
    ],
    ids=["taint", "claim", "ConfigMap", "Secret"],
)
def test_status_says_it_as_soon_as_the_cluster_knows_it(
    plane: ControlPlane, ab: Shell, namespace: str, fields: dict[str, Any], known: str, code: str, words: str
) -> None:
    ab("run", ab.job(**fields), "--detach")
    until("the cluster to know it", lambda: known in told_by_the_cluster(plane, namespace), 60)
    begun = time.monotonic()
    found = ab.reason(code)
    took = time.monotonic() - begun
    assert words in found["summary"] and "\n" not in found["summary"]
    assert took < SOON, f"{took:.1f} s after the cluster knew it"


def told_by_the_cluster(plane: ControlPlane, namespace: str) -> str:
    """What its objects and events say of pods, in one text."""
    pods = plane.api.list("v1", "Pod", namespace)
    conditions = [c for pod in pods for c in (pod.get("status") or {}).get("conditions") or ()]
    events = plane.api.list("v1", "Event", namespace)
    return "\n".join(str(one.get("message")) for one in (*conditions, *events))


@pytest.fixture
def denied(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Callable[[bool], None]]:
    """``denied(answers)``: a webhook that admits no pod to the namespace, or that does not answer."""
    ours = pki.authority("webhook of these tests")
    pair = pki.sign(ours, "localhost", hosts=["localhost", "127.0.0.1"])
    pair.write(tmp_path, "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Denies)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made: list[Object] = []

    def deny(answers: bool) -> None:
        port = server.server_port if answers else 1
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        authority = base64.b64encode(ours.certificate).decode()
        webhook = {
            "name": "images.policy.example",
            "clientConfig": {"url": f"https://localhost:{port}/", "caBundle": authority},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 2,
        }
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
        made.append(plane.api.create({**kind, "metadata": {"name": namespace}, "webhooks": [webhook]}))

    yield deny
    for one in made:
        plane.api.delete(one["apiVersion"], one["kind"], one["metadata"]["name"])
    server.shutdown()
    server.server_close()
    thread.join()


class Denies(BaseHTTPRequestHandler):
    """Admits nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = {"message": "images must come from registry.lab", "code": 403}
        answer = {"uid": asked["request"]["uid"], "allowed": False, "status": status}
        body = json.dumps({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": answer})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        (True, "admission_webhook_denied", "images must come from registry.lab"),
        (False, "webhook_unavailable", "failed calling webhook"),
    ],
    ids=["denies", "is away"],
)
def test_pods_that_a_webhook_refuses(
    plane: ControlPlane,
    ab: Shell,
    namespace: str,
    denied: Callable[[bool], None],
    answers: bool,
    code: str,
    words: str,
) -> None:
    denied(answers)
    ab("run", ab.job(), "--detach")
    until("the cluster to know it", lambda: words in told_by_the_cluster(plane, namespace), 60)
    begun = time.monotonic()
    found = ab.reason(code)
    took = time.monotonic() - begun
    assert "1 of 1 members cannot be made" in found["summary"] and words in found["summary"]
    assert "\n" not in found["summary"]
    assert found["retryable"] is not answers, "one that is away may come back"
    assert took < SOON, f"{took:.1f} s after the cluster knew it"


def test_an_init_container_that_is_started_again_is_told_with_its_reason(ab: Shell) -> None:
    prepares = {"name": "prep", "image": "alpine", "command": ["sh", "-c", "echo no data; sleep 1; exit 3"]}
    ab("run", ab.job(spec={"initContainers": [prepares]}), "--detach")

    def again() -> Object | None:
        body: Object = ab("status", "digits", "--json").json
        return body if body["restarts"] >= 2 and body["diagnoses"] else None

    body = until("two restarts", again, timeout=90)
    summary = body["diagnoses"][0]["summary"]
    assert f"init container prep exited with 3 ({body['restarts']} restarts)" in summary
    assert body["members"][0]["restarts"] == body["restarts"]
    assert [line for line in ab("logs", "digits").out.splitlines() if "no data" in line]


def test_what_an_init_container_writes_while_it_waits_is_one_line_of_logs(ab: Shell) -> None:
    script = "for n in $(seq 400); do echo waiting for the data $n; done; sleep 600"
    prepares = {"name": "prep", "image": "alpine", "command": ["sh", "-c", script]}
    ab("run", ab.job(workers=2, spec={"initContainers": [prepares]}), "--detach")
    until("its lines", lambda: ab("logs", "digits", "--init").out.count("waiting for the data 400") == 2, 90)
    lines = ab("logs", "digits").out.splitlines()
    assert len(lines) == 2, "one line for each member"
    for line in lines:
        assert "400 lines from" in line and "folded (--init shows them): waiting for the data 400" in line
    assert json.loads(ab("status", "digits", "--json").out)["state"] == "starting"


def test_what_can_never_start_fails_at_the_clock_of_its_phase(ab: Shell) -> None:
    job = ab.job(image="registry.lab/nothing:1", policy={"clocks": {"image": "5s"}})
    ended = ab("run", job, code=None)
    assert ended.code == 1, "it failed; it did not run out of time"
    said = f"{ended.out}{ended.err}"
    assert "starting: master-0 cannot start: its image registry.lab/nothing:1" in said
    assert "failed" in said and "no such image" in said
    summary = json.loads(ab("status", "digits", "--json").out)
    assert (summary["state"], summary["diagnoses"][0]["code"]) == ("failed", "image_not_found")


def test_what_may_still_start_runs_out_of_time(ab: Shell) -> None:
    job = ab.job(spec=main(image="slow.lab/x"), policy={"clocks": {"scheduled": "4s"}}, resources={"gpu": 2})
    ab("run", ab.job(name="first", workers=2, resources={"gpu": 2}), "--detach")
    ab.until_it_runs(ab.run_of())
    assert ab("run", job, code=None).code == 4


def test_what_is_mended_starts(plane: ControlPlane, ab: Shell, namespace: str) -> None:
    ab("run", ab.job(secrets=[{"name": "keys", "env": True}], command=["sleep", "2"]), "--detach")
    ab.reason("container_config_missing")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": namespace}}
    plane.api.create({**secret, "stringData": {"A": "1"}})
    ab("follow", "digits")


def test_a_pod_merges_as_the_api_server_s_strategic_merge_patch_does(
    plane: ControlPlane, namespace: str
) -> None:
    ours: Object = {
        "containers": [
            {
                "name": "pytorch",
                "image": "a",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "ports": [{"containerPort": 1, "name": "one", "protocol": "TCP"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "imagePullSecrets": [{"name": "a"}],
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}],
        "nodeSelector": {"a": "1", "b": "2"},
    }
    theirs: Object = {
        "containers": [
            {
                "name": "pytorch",
                "env": [{"name": "B", "$patch": "delete"}, {"name": "A", "value": "9"}],
                "volumeMounts": [{"name": "mine", "mountPath": "/mine"}],
                "ports": [{"containerPort": 1, "hostPort": 5}],
            },
            {"name": "beside", "image": "b"},
        ],
        "volumes": [{"name": "mine", "emptyDir": {}}, {"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}],
        "imagePullSecrets": [{"name": "b"}, {"name": "a"}],
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["b"]}],
        "nodeSelector": {"a": None, "c": "3"},
    }
    metadata = {"name": "one", "namespace": namespace}
    made = plane.api.create(
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": {"spec": ours}}
    )
    change = {"template": {"spec": theirs}}
    patched = plane.api.request("PATCH", plane.api.path(made), change, content=STRATEGIC)
    found = merged(copy.deepcopy(made["template"]["spec"]), theirs)

    def by_name(spec: Object) -> Object:
        """Lists with a key have no order."""
        lists = {name: value for name, value in spec.items() if isinstance(value, list)}
        inner = [
            {**c, **{k: sorted(v, key=str) for k, v in c.items() if isinstance(v, list)}}
            for c in lists.pop("containers")
        ]
        plain = {k: v for k, v in spec.items() if not isinstance(v, list)}
        kept = [{k: v for k, v in c.items() if k in ours["containers"][0]} for c in inner]
        return {
            **plain,
            **{name: sorted(value, key=str) for name, value in lists.items()},
            "containers": sorted(kept, key=lambda c: c["name"]),
        }

    assert by_name(found) == by_name(patched["template"]["spec"])
