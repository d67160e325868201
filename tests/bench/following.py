"""B1, the whole follower: what deferred runs cost, each led to its end by `allaboard.follow.loop` over the
async backend, as a trigger does it. Beside it the same with what rank 0 reports read once a minute, which a
watch cannot tell.

The runs are launched by allaboard and have a record each. No operator runs: a pod for each rank 0, on a node
whose kubelet is a small server here, gives them something to say; and one for each worker where members are
listened to.
"""

from __future__ import annotations

import http.server
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from allaboard.backends.base import Handle, Plan
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.api import Api
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import NODES, PODS, SERVICEACCOUNTS
from allaboard.checking.job import require_valid
from allaboard.render import labels
from allaboard.runs.observation import Owner
from allaboard.testing import a_job
from allaboard.testing.objects import a_pod
from allaboard.text.reportline import encode
from allaboard.text.units import rfc3339
from tests.cluster.api import until
from tests.cluster.plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
NODE = "bench"
DETACHED = Owner("bench", "deferred", "detached")


def launch(
    plane: ControlPlane,
    namespace: str,
    count: int,
    members: Sequence[str] = ("master-0",),
    owner: Owner = DETACHED,
) -> list[Handle]:
    """Runs of which these members are running."""
    access = Access(str(plane.kubeconfig), namespace=namespace, environ={})
    with access.api(Patience(budget=120)) as api:
        api.create(
            SERVICEACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        )
        backend = KubernetesBackend(api, environ={})

        def start(n: int) -> Handle:
            plan = Plan(
                require_valid(a_job(image="lab/train:1", gang={"scheduler": "none"})), f"{namespace}-{n}"
            )
            handle = backend.launch(plan, owner)
            for member in members:
                say_running(api, handle.run, member)
            return handle

        with ThreadPoolExecutor(16) as pool:
            return [*pool.map(start, range(count))]


def say_running(api: Api, run: str, member: str) -> None:
    """What a kubelet says of the pod that an operator has made."""
    body = a_pod(member, job=run)
    status = body.pop("status")
    body["metadata"] = {
        "name": body["metadata"]["name"],
        "labels": {**body["metadata"]["labels"], **labels_of(run)},
    }
    body["spec"] = {"nodeName": NODE, "containers": [{"name": "pytorch", "image": "lab/train:1"}]}
    api.create(PODS, body)
    now = rfc3339(time.time())
    for condition in status["conditions"]:
        condition["lastTransitionTime"] = now
    for container in status["containerStatuses"]:
        container |= {"image": "", "imageID": "", "ready": True, "state": {"running": {"startedAt": now}}}
    api.patch(PODS, body["metadata"]["name"], {"status": status}, sub="status")


def labels_of(run: str) -> dict[str, str]:
    return {labels.MANAGED_BY: "allaboard", labels.RUN: run, labels.ATTEMPT: "1", labels.GENERATION: "1"}


@contextmanager
def kubelet(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """A node whose kubelet knows one answer: the report line of this minute."""
    told = folder / "kubelet.port"
    command = [sys.executable, "-m", "tests.bench.following", str(plane.pki), str(told)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        until("the kubelet", told.exists, timeout=30)
        port = int(told.read_text())
        with Access(str(plane.kubeconfig), environ={}).api() as api:
            api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            at = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            }
            api.patch(NODES, NODE, {"status": at}, sub="status")
        yield
    finally:
        process.terminate()
        process.wait()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # One line a minute: members of a run that has ended write no more between two looks at its end.
        now = time.time() // 60 * 60
        line = encode("progress", step=int(now), total=4_000_000_000, loss=0.5)
        body = f"{rfc3339(now)} {line}\n".encode()
        self.send_response(200)
        if "follow=true" in self.path:
            self.follow(body)
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def follow(self, body: bytes) -> None:
        """The line, and no other, for as long as somebody listens."""
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
        self.rfile.read(1)

    def log_message(self, format: str, *args: object) -> None:
        return


def serve(pki: Path, told: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "kubelet.crt", pki / "kubelet.key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    unfinished = told.with_suffix(".new")
    unfinished.write_text(str(server.server_port))
    unfinished.rename(told)
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
