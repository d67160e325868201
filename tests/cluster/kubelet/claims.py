"""A provisioner: claims of the storage class ``harness`` get a volume, which the kubelet maps to a folder."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

from tests.cluster.kubelet.api import Api, ApiError

CLASS = "harness"
PROVISIONER = "allaboard.test/folder"


async def provision(api: Api, folder: Path) -> None:
    """Make the class (the default one), then a volume for every claim of it, which goes with its claim; for
    ever.
    """
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": default},
        "provisioner": PROVISIONER,
        "volumeBindingMode": "Immediate",
        "reclaimPolicy": "Delete",
    }
    with suppress(ApiError):
        await api.create("/apis/storage.k8s.io/v1/storageclasses", body)
    async for kind, found in api.follow("/api/v1/persistentvolumeclaims"):
        for claim in found["items"] if kind == "RESET" else [found]:
            spec = claim["spec"]
            if kind == "DELETED" and spec.get("volumeName") == f"pvc-{claim['metadata']['uid']}":
                await api.delete(f"/api/v1/persistentvolumes/{spec['volumeName']}")
                await asyncio.to_thread(shutil.rmtree, folder / spec["volumeName"], True)
            elif kind != "DELETED" and spec.get("storageClassName") == CLASS and not spec.get("volumeName"):
                meta = claim["metadata"]
                volume = {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {
                        "name": f"pvc-{meta['uid']}",
                        "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
                    },
                    "spec": {
                        "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                        "accessModes": spec["accessModes"],
                        "storageClassName": CLASS,
                        "persistentVolumeReclaimPolicy": "Delete",
                        "volumeMode": "Filesystem",
                        "claimRef": {
                            "apiVersion": "v1",
                            "kind": "PersistentVolumeClaim",
                            "namespace": meta["namespace"],
                            "name": meta["name"],
                            "uid": meta["uid"],
                        },
                        # A kind of volume that needs no attaching; nobody but the kubelet looks at it.
                        "nfs": {"server": PROVISIONER, "path": f"/{meta['namespace']}/{meta['name']}"},
                    },
                }
                with suppress(ApiError):
                    await api.create("/api/v1/persistentvolumes", volume)
