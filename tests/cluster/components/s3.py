"""An S3 server over a folder: the store of trainings on this cluster."""

from __future__ import annotations

import secrets
from typing import Any

from tests.cluster.build import Build
from tests.cluster.cluster import write
from tests.cluster.components import Component
from tests.cluster.plane import ControlPlane

VERSITYGW = Build(
    "versitygw",
    "github.com/versity/versitygw",
    (("versitygw", "github.com/versity/versitygw/cmd/versitygw"),),
    minutes=0.6,
)
REGION = "us-east-1"


def prepare(plane: ControlPlane) -> None:
    if not (plane.folder("s3") / "credentials").exists():
        write(plane.folder("s3"), "credentials", f"allaboard {secrets.token_urlsafe(24)}")
    for name in ("buckets", "attributes"):
        (plane.folder("s3") / name).mkdir(exist_ok=True)


def variables(plane: ControlPlane, host: str = "127.0.0.1") -> dict[str, str]:
    """What clients need to find this store and be let in. Pods know this machine as ``host.internal``."""
    access, secret = (plane.folder("s3") / "credentials").read_text().split()
    return {
        "AWS_ENDPOINT_URL": f"http://{host}:{plane.port('s3')}",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
    }


def environ(plane: ControlPlane) -> dict[str, str]:
    own = variables(plane)
    return {"ROOT_ACCESS_KEY": own["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": own["AWS_SECRET_ACCESS_KEY"]}


def command(plane: ControlPlane) -> list[str]:
    return [
        VERSITYGW.binary("versitygw"),
        f"--port={plane.listen}:{plane.port('s3')}",
        f"--region={REGION}",
        "--health=/health",
        "posix",
        # Not every file system keeps attributes of files.
        f"--sidecar={plane.folder('s3') / 'attributes'}",
        str(plane.folder("s3") / "buckets"),
    ]


def client(plane: ControlPlane) -> Any:
    """boto3's, with the keys of the store's owner."""
    import boto3

    said = variables(plane)
    return boto3.client(
        "s3",
        endpoint_url=said["AWS_ENDPOINT_URL"],
        region_name=said["AWS_REGION"],
        aws_access_key_id=said["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=said["AWS_SECRET_ACCESS_KEY"],
    )


def give(plane: ControlPlane, namespace: str, bucket: str) -> None:
    """A bucket, if it is not there, and what members need for it: the Secret ``store`` of a namespace."""
    about = {"name": "store", "namespace": namespace}
    keys = variables(plane, "host.internal")
    plane.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": keys})
    store = client(plane)
    if bucket not in [each["Name"] for each in store.list_buckets()["Buckets"]]:
        store.create_bucket(Bucket=bucket)


COMPONENTS = (
    Component(
        "s3",
        "an S3 store",
        VERSITYGW,
        command,
        ready=lambda plane: plane.healthy("s3", "/health", tls=False),
        prepare=prepare,
        environ=environ,
    ),
)
