"""Volumes of pods as folders: ConfigMaps, Secrets, projections, empty folders, claims, those of ephemeral
volumes among them, and buckets that a CSI driver would mount.

ConfigMaps, Secrets, projected and downward volumes are written as the kubelet writes them: files behind the
link ``..data``, which turns to a new folder as a whole when the content changes.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster.kubelet.api import Api, ApiError
from tests.cluster.kubelet.environment import ConfigError, Facts, pod_field, resource_field
from tests.cluster.kubelet.quantity import quantity

Object = dict[str, Any]
BUCKET_DRIVER = "bucket.allaboard.test"
"""The CSI driver that this kubelet has: its volumes are the buckets of the store that runs beside it
(``volumeAttributes: {bucketName: NAME}``).
"""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a written volume."""

    data: bytes
    mode: int


@dataclass(slots=True)
class Mounted:
    """The volumes of one pod."""

    sources: dict[str, Path] = field(default_factory=dict)
    """Volume name: the folder on this machine that is bound into containers."""
    tmpfs: list[dict[str, str]] = field(default_factory=list)
    """Memory-backed ones: mounted over their folder in the sandbox, and seen nowhere else."""


class VolumeError(Exception):
    """A volume cannot be set up now; the message is the one of the FailedMount event."""

    def __init__(self, volume: str, trouble: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {trouble}')


class Volumes:
    """Sets up the volumes of one pod under a folder; ``claims`` holds the folders of persistent volumes,
    ``buckets`` those of a store, if there is one.
    """

    def __init__(self, api: Api, folder: Path, claims: Path, buckets: Path | None = None) -> None:
        self._api, self._folder, self._claims, self._buckets = api, folder, claims, buckets

    async def mount(self, pod: Object, facts: Facts) -> Mounted:
        """All of them. Raises VolumeError at the first that cannot be."""
        mounted = Mounted()
        group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
        for volume in pod["spec"].get("volumes") or []:
            folder = self._folder / volume["name"]
            if "emptyDir" in volume:
                self._empty(volume["emptyDir"] or {}, folder, mounted)
            elif "persistentVolumeClaim" in volume:
                folder = await self._claim(pod, volume, volume["persistentVolumeClaim"]["claimName"])
            elif "ephemeral" in volume:
                folder = await self._claim(pod, volume, f"{pod['metadata']['name']}-{volume['name']}")
            elif "csi" in volume:
                folder = self._bucket(volume)
            elif (files := await self._files(pod, volume, facts)) is not None:
                write_atomically(folder, files, group)
            else:
                kind = next((key for key in volume if key != "name"), "nothing")
                raise VolumeError(volume["name"], f"this kubelet serves no {kind} volumes")
            if group is not None and {*volume} & {"emptyDir", "persistentVolumeClaim", "ephemeral"}:
                os.chown(folder, -1, group)
                folder.chmod(0o2777)
            mounted.sources[volume["name"]] = folder
        return mounted

    async def refresh(self, pod: Object, facts: Facts) -> None:
        """Write what changed since; a source that is gone now leaves its files as they were."""
        group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
        for volume in pod["spec"].get("volumes") or []:
            with suppress(VolumeError, ApiError, ConnectionError):
                files = await self._files(pod, volume, facts)
                if files is not None:
                    write_atomically(self._folder / volume["name"], files, group)

    @staticmethod
    def _empty(spec: Object, folder: Path, mounted: Mounted) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        if spec.get("medium") == "Memory":
            limit = f",size={int(quantity(spec['sizeLimit']))}" if spec.get("sizeLimit") else ""
            mounted.tmpfs.append({"path": str(folder), "options": f"mode=1777{limit}"})

    def _bucket(self, volume: Object) -> Path:
        driver, said = volume["csi"]["driver"], volume["csi"].get("volumeAttributes") or {}
        if driver != BUCKET_DRIVER or self._buckets is None:
            raise VolumeError(
                volume["name"], f"driver name {driver} not found in the list of registered CSI drivers"
            )
        folder = self._buckets / str(said.get("bucketName") or "")
        if folder.parent != self._buckets or not folder.is_dir():
            raise VolumeError(volume["name"], f"bucket {said.get('bucketName')} does not exist")
        return folder

    async def _claim(self, pod: Object, volume: Object, name: str) -> Path:
        namespace = pod["metadata"]["namespace"]
        claim = await self._look_up(
            volume["name"], f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        )
        if claim is None:
            raise VolumeError(volume["name"], f'persistentvolumeclaim "{name}" not found')
        owners = [ref["uid"] for ref in claim["metadata"].get("ownerReferences") or []]
        if "ephemeral" in volume and pod["metadata"]["uid"] not in owners:
            raise VolumeError(volume["name"], f'PVC "{namespace}/{name}" was not created for the pod')
        bound: str = claim["spec"].get("volumeName", "")
        if not bound or (claim.get("status") or {}).get("phase") != "Bound":
            raise VolumeError(volume["name"], f'persistentvolumeclaim "{name}" is not bound')
        folder = self._claims / bound
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    async def _files(self, pod: Object, volume: Object, facts: Facts) -> dict[str, File] | None:
        """The files of a written volume; None when it is of another kind."""
        name = volume["name"]
        if "projected" in volume:
            default = volume["projected"].get("defaultMode", 0o644)
            files: dict[str, File] = {}
            for source in volume["projected"].get("sources") or []:
                kind, spec = next(iter(source.items()))
                files |= await self._source(pod, name, kind, spec, default, facts)
            return files
        for kind in ("configMap", "secret", "downwardAPI"):
            if kind in volume:
                spec = dict(volume[kind])
                spec.setdefault("name", spec.get("secretName"))
                return await self._source(pod, name, kind, spec, spec.get("defaultMode", 0o644), facts)
        return None

    async def _source(
        self, pod: Object, volume: str, kind: str, spec: Object, default: int, facts: Facts
    ) -> dict[str, File]:
        if kind == "downwardAPI":
            return _downward(pod, volume, spec, default, facts)
        if kind == "serviceAccountToken":
            token = await self._token(pod, volume, spec)
            return {spec["path"]: File(token.encode(), 0o600 if default == 0o600 else default)}
        if kind not in ("configMap", "secret"):
            raise VolumeError(volume, f"this kubelet serves no projected {kind}")
        namespace = pod["metadata"]["namespace"]
        found = await self._look_up(volume, f"/api/v1/namespaces/{namespace}/{kind.lower()}s/{spec['name']}")
        if found is None:
            if spec.get("optional"):
                return {}
            raise VolumeError(volume, f'{kind.lower()} "{spec["name"]}" not found')
        data = contents(found)
        if not spec.get("items"):
            return {key: File(value, default) for key, value in data.items()}
        files = {}
        for item in spec["items"]:
            if item["key"] in data:
                files[item["path"]] = File(data[item["key"]], item.get("mode", default))
            elif not spec.get("optional"):
                word = "config" if kind == "configMap" else "secret"
                raise VolumeError(volume, f"references non-existent {word} key: {item['key']}")
        return files

    async def _token(self, pod: Object, volume: str, spec: Object) -> str:
        meta = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        wanted = {
            "audiences": [spec["audience"]] if spec.get("audience") else [],
            "expirationSeconds": spec.get("expirationSeconds", 3600),
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]},
        }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": wanted}
        path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
        try:
            answer = await self._api.create(path, body)
        except ApiError as error:
            raise VolumeError(volume, f"failed to fetch token: {error.message}") from error
        except ConnectionError as error:
            raise VolumeError(volume, f"failed to fetch token: {error}") from error
        token: str = answer["status"]["token"]
        return token

    async def _look_up(self, volume: str, path: str) -> Object | None:
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise VolumeError(volume, error.message) from error
        except ConnectionError as error:
            raise VolumeError(volume, str(error)) from error


def used(folder: Path) -> int:
    """Bytes of the files below it."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def contents(found: Object) -> dict[str, bytes]:
    """Of a ConfigMap or a Secret, whichever it is."""
    if found.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    plain = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}


def _downward(pod: Object, volume: str, spec: Object, default: int, facts: Facts) -> dict[str, File]:
    files = {}
    for item in spec.get("items") or []:
        try:
            if "fieldRef" in item:
                value = pod_field(pod, item["fieldRef"]["fieldPath"], facts)
            else:
                value = resource_field(pod, item["resourceFieldRef"], facts)
        except ConfigError as error:
            raise VolumeError(volume, str(error)) from error
        files[item["path"]] = File(value.encode(), item.get("mode", default))
    return files


def write_atomically(folder: Path, files: Mapping[str, File], group: int | None = None) -> None:
    """Show these files in the folder, all at once: readers see the old ones or the new ones."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    data = folder / "..data"
    old = folder / data.readlink() if data.is_symlink() else None
    if old is not None and _same(old, files):
        return
    fresh = folder / f"..{datetime.now(UTC):%Y_%m_%d_%H_%M_%S.%f}"
    fresh.mkdir()
    for path, file in files.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(file.mode | (0o440 if group is not None else 0))
        if group is not None:
            os.chown(target, -1, group)
    turning = folder / "..data_tmp"
    turning.symlink_to(fresh.name)
    turning.replace(data)
    shown = {path.split("/")[0] for path in files}
    for name in shown:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in shown:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _same(folder: Path, files: Mapping[str, File]) -> bool:
    present = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    if present.keys() != files.keys():
        return False
    return all(present[name].read_bytes() == file.data for name, file in files.items())
