"""An Airflow whose connection names a plane, and runs of its DAGs there. It may do on the plane what the Role
of submitters allows, and its connections are in its database, as people make them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS
from allaboard.backends.kubernetes.state import records
from allaboard.follow.run_record import RunRecord
from allaboard.render import labels
from allaboard.storage import Store, open_store
from allaboard.testing.objects import PYTORCHJOBS
from tests.cluster.components import s3
from tests.cluster.plane import ROOT, ControlPlane
from tests.provider.live import Live, Run, Start, until

HERE = Path(__file__).resolve().parent
TEAM, STORE = "team", "s3://lab/team"


def prepare(plane: ControlPlane) -> None:
    """The namespace of a team, and its store."""
    plane.make_namespace(TEAM)
    s3.give(plane, TEAM, "lab")


@contextmanager
def airflow_on(plane: ControlPlane, folder: Path) -> Iterator[OnCluster]:
    """With the DAGs of this folder and the retraining DAG of the examples."""
    dags = folder / "dags"
    dags.mkdir()
    examples = ROOT / "dags_examples"
    for source in (examples / "retrain_digits.py", examples / "digits", *(HERE / "dags").glob("*.py")):
        (dags / source.name).symlink_to(source)
    (dags / ".airflowignore").write_text("digits/\ngated.*\n")
    found = OnCluster(folder, dags, plane)
    with pytest.MonkeyPatch.context() as patch:
        # No other connection of whoever runs the tests.
        for name in [n for n in os.environ if n.startswith("AIRFLOW_CONN_")]:
            patch.delenv(name)
        try:
            with found.airflow:
                found.connect()
                yield found
        finally:
            found.stop()


class OnCluster(Live):
    """An Airflow of one's own, which trains on a plane."""

    def __init__(self, folder: Path, dags: Path, plane: ControlPlane) -> None:
        self.plane = plane
        self.account = plane.kubeconfig_for_role(TEAM, "submitter")
        self.store_environ = s3.variables(plane)
        super().__init__(folder, dags, **self.store_environ)
        self._backend = KubernetesBackend(
            Access(kubeconfig=str(plane.kubeconfig), namespace=TEAM).api(), environ=self.store_environ
        )

    @property
    def backend(self) -> KubernetesBackend:
        return self._backend

    def records(self) -> list[RunRecord]:
        found, _ = self.backend.api.list(CONFIGMAPS, labels=records.selector())
        return [records.parse(body).record for body in found]

    def connect(self) -> None:
        """Make the connections, as an administrator does."""
        place = {
            "backend": "kubernetes", "kubernetes_conn_id": "lab", "namespace": TEAM,
            "store": STORE, "image": "harness/python:3.12", "secrets": "store",
        }  # fmt: skip
        cluster = {"kube_config": self.account.read_text()}
        for conn_id, conn_type, extra in (
            ("allaboard_default", "allaboard", place),
            ("lab", "kubernetes", cluster),
        ):
            body = {"connection_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra)}
            self.airflow.api("POST", "/connections", body)

    def run(self, dag: str, name: str) -> HeldRun:
        return HeldRun(self, dag, name)

    def open(self, place: str) -> Store:
        return open_store(f"{STORE}/{place}", environ=self.store_environ)


class HeldRun(Run):
    """A DAG run and its training, which share no disk with us."""

    live: OnCluster

    def starts(self, gate: str = "") -> list[Start]:
        store = self.live.open(f"gates/{self.name}")
        found = [entry.key for entry in store.entries() if entry.key.startswith("start-")]
        return [Start(**json.loads(store.read(key))) for key in found]

    def finish(self, gate: str = "") -> None:
        self.live.open(f"gates/{self.name}").write("finish", b"")

    def wait_gone(self) -> None:
        until("no member lives", lambda: not self.pods())

    def pods(self) -> list[str]:
        """Of its members that may still write something."""
        api = self.live.backend.api
        found, _ = api.list(PODS, labels=labels.selector(self.record().run))
        return [pod["metadata"]["name"] for pod in found if pod["status"]["phase"] in ("Pending", "Running")]

    def jobs(self) -> list[str]:
        found, _ = self.live.backend.api.list(PYTORCHJOBS, labels=labels.selector(self.record().run))
        return [job["metadata"]["name"] for job in found]

    def wait_watched(self) -> None:
        """Deferred, and the triggerer says what rank 0 does."""
        self.wait_task("deferred")
        until("the trigger has told something", lambda: "rank 0 works at step" in self.log())
