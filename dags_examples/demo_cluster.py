"""What `make demo-cluster` runs: the DAG of `retrain_digits.py`, unchanged, on a Kubernetes cluster.

    make demo-cluster ARGS="--epochs 2"       a shorter training

The cluster is that of `make cluster-up` (tests/cluster): a real control plane with the Training Operator,
nodes whose pods are processes, an S3 store. It is started when it does not run, and left running. All that
the DAG is told is a connection; Airflow acts there as the account of submitters.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from demo import HERE, Place, main

ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
NAMESPACE, BUCKET = "demo", "demo"
NEEDS = ("training-operator", "s3", "nodes")


def cluster() -> Place:
    """The cluster, with a namespace, an account, a bucket and its keys for the demo."""
    # Tests start it too; when all of it runs, this says so and does nothing.
    subprocess.run([sys.executable, "-m", "tests.cluster", "up", *NEEDS], cwd=ROOT, check=True)
    from tests.cluster.__main__ import STATE
    from tests.cluster.components import s3
    from tests.cluster.plane import ControlPlane

    plane = ControlPlane.attach(STATE)
    if plane.api.get("v1", "Namespace", NAMESPACE) is None:
        plane.make_namespace(NAMESPACE)
    account = plane.kubeconfig_for_role(NAMESPACE, "submitter", seconds=24 * 3600)
    s3.give(plane, NAMESPACE, BUCKET)
    store = f"s3://{BUCKET}/team"
    connections = {
        "allaboard": {
            "backend": "kubernetes", "kubernetes_conn_id": "allaboard_cluster", "namespace": NAMESPACE,
            "store": store, "image": "harness/python:3.12", "secrets": "store",
        },
        "kubernetes": {"kube_config_path": str(account)},
    }  # fmt: skip
    kubeconfig = plane.kubeconfig
    environ = {
        **s3.variables(plane),
        "AIRFLOW_CONN_ALLABOARD_DEFAULT": connection("allaboard", connections["allaboard"]),
        "AIRFLOW_CONN_ALLABOARD_CLUSTER": connection("kubernetes", connections["kubernetes"]),
    }
    return Place(
        folder=ROOT / ".allaboard" / "demo-cluster",
        store=store,
        environ=environ,
        backend=lambda: backend(kubeconfig),
        options=f" --namespace {NAMESPACE} --kubeconfig {relative(kubeconfig)}",
        look={
            "again": "make demo-cluster             the gate at work: promoted only if better",
            "pods": f"kubectl --kubeconfig {relative(kubeconfig)} -n {NAMESPACE} get pytorchjobs,pods",
            "down": "make cluster-down             ends the cluster and removes what is in it",
        },
    )


def connection(kind: str, extra: dict[str, str]) -> str:
    return json.dumps({"conn_type": kind, "extra": extra})


def relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def backend(kubeconfig: Path) -> Any:
    from allaboard.running import backend_of

    return backend_of("kubernetes", kubeconfig=str(kubeconfig), namespace=NAMESPACE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, help="how often the data is gone through (16)")
    epochs = parser.parse_args().epochs
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(epochs, cluster()))
    except KeyboardInterrupt:
        print("Whatever ran of the cluster runs on: make cluster-status; make cluster-down ends it.")
        sys.exit(130)
    except subprocess.CalledProcessError:
        sys.exit(1)  # it has said why
