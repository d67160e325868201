"""A step as a cluster runs it, without one: what KFP's driver and launcher do around a component's command.

    python pod.py COMPILED.yaml TASK.json      prints a JSON object: exit code, log, outputs

As the launcher does (kubeflow/pipelines: backend/src/v2/component/launcher_v2.go, …/objectstore): input
artifacts are downloaded from the bucket, whatever the step does with them; the files of ``s3://b/k`` lie at
``/s3/b/k``; the file of outputs is parsed strictly; every output artifact is uploaded from its path, and one
whose uri is outside the place of this pipeline run fails the step. The user is not root, has no home, and
writes only where a pod has scratch volumes. `as_pod` makes such a machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BUCKET = "pipelines"
ROOT = f"s3://{BUCKET}/v2/artifacts"
TERMINATION_LOG = Path("/dev/termination-log")
USER = 1000
"""The uid of steps. An administrator's default may be any but 0."""


class LauncherError(Exception):
    """What the launcher stops with; the step fails although its command may have succeeded."""


def place(uri: str) -> Path:
    """The file of an artifact: ``LocalPathForURI``."""
    if not uri.startswith("s3://"):
        raise LauncherError(f"failed to generate local path for URI {uri}: unsupported storage scheme")
    return Path("/s3/" + uri.removeprefix("s3://"))


class Bucket:
    """``objectstore.Config``, opened: the place of one pipeline run in the object store."""

    def __init__(self, prefixed: str) -> None:
        import boto3

        self.prefixed = prefixed
        self.client = boto3.client("s3")

    def key(self, uri: str) -> str:
        """``KeyFromURI``, in its words."""
        if not uri.startswith(self.prefixed):
            raise LauncherError(
                f"URI {json.dumps(uri)} does not have expected bucket prefix {json.dumps(self.prefixed)}"
            )
        return uri.removeprefix("s3://").partition("/")[2]

    def upload(self, path: Path, uri: str) -> list[str]:
        """``UploadBlob``: a file, or a folder with all that is in it. The uris that were written."""
        key = self.key(uri)
        if not path.exists():
            return []  # a warning of the launcher
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            name = key if file == path else f"{key}/{file.relative_to(path)}"
            self.client.upload_file(str(file), BUCKET, name)
        return [uri if file == path else f"{uri}/{file.relative_to(path)}" for file in files]

    def download(self, uri: str, path: Path) -> None:
        """``DownloadBlob``: of any bucket, and nothing is there is no error."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        for found in self.client.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", []):
            if found["Key"] == key or found["Key"].startswith(key.rstrip("/") + "/"):
                to = path / found["Key"].removeprefix(key).lstrip("/")
                to.parent.mkdir(parents=True, exist_ok=True)
                self.client.download_file(bucket, found["Key"], str(to))


def main(compiled: str, task_file: str) -> None:
    import yaml
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    task = json.loads(Path(task_file).read_text())
    spec = json_format.ParseDict(
        next(yaml.safe_load_all(Path(compiled).read_text())), pipeline_spec_pb2.PipelineSpec()
    )
    name = task.get("component") or next(iter(spec.components))
    component = spec.components[name]
    box = json_format.MessageToDict(spec.deployment_spec)["executors"][component.executor_label]["container"]
    run = f"{ROOT}/{spec.pipeline_info.name}/{task['run']}"
    given = _executor_input(component, run, name.removeprefix("comp-"), task, json_format.MessageToDict)
    bucket = Bucket(run)
    for artifacts in given["inputs"]["artifacts"].values():
        for artifact in artifacts["artifacts"]:
            bucket.download(artifact["uri"], place(artifact["uri"]))
    for artifact in _each(given["outputs"]["artifacts"]):
        place(artifact["uri"]).parent.mkdir(parents=True, exist_ok=True)
    Path("/tmp/kfp/outputs").mkdir(parents=True)
    pod = {"KFP_POD_NAME": "retrain-digits-abcde-1", "KFP_POD_UID": str(uuid.uuid4())}
    pod["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the image's own python3
    answer = subprocess.run(
        [_filled(word, given) for word in box.get("command", []) + box.get("args", [])],
        env={**os.environ, **pod}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    found: dict[str, Any] = {"code": answer.returncode, "log": answer.stdout}
    place(given["outputs"]["artifacts"]["executor-logs"]["artifacts"][0]["uri"]).write_text(answer.stdout)
    try:
        found |= _outputs(component, given, bucket, succeeded=answer.returncode == 0)
    except LauncherError as error:
        found |= {"code": 1, "log": f"{answer.stdout}failed to execute component: {error}\n"}
    found["message"] = TERMINATION_LOG.read_text()
    print(json.dumps(found))


def _executor_input(
    component: Any, run: str, name: str, task: Mapping[str, Any], as_dict: Any
) -> dict[str, Any]:
    """What the driver resolves, and the launcher completes with the defaults of the component."""
    folder = f"{run}/{name}/{task['task']}"
    known = component.input_definitions.parameters
    values = {k: as_dict(p.default_value) for k, p in known.items() if p.HasField("default_value")}
    values |= task["parameters"]
    missing = {k for k, p in known.items() if not p.is_optional} - set(values)
    assert not missing, f"the driver misses {missing}"
    types = {k: as_dict(a.artifact_type) for k, a in component.output_definitions.artifacts.items()}
    types["executor-logs"] = {"schemaTitle": "system.Artifact", "schemaVersion": "0.0.1"}  # PUBLISH_LOGS
    out = {
        "parameters": {
            k: {"outputFile": f"/tmp/kfp/outputs/{k}"} for k in component.output_definitions.parameters
        },
        "artifacts": {
            k: {"artifacts": [{"name": k, "uri": f"{folder}/{k}", "metadata": {}, "type": kind}]}
            for k, kind in types.items()
        },
        "outputFile": str(place(f"{folder}/output_metadata.json")),
    }
    artifacts = {
        k: {"artifacts": [{"name": k, "metadata": {}, "type": types["executor-logs"], **artifact}]}
        for k, artifact in task.get("artifacts", {}).items()
    }
    return {"inputs": {"parameterValues": values, "artifacts": artifacts}, "outputs": out}


def _filled(word: str, given: Mapping[str, Any]) -> str:
    """A word of the command with its placeholders replaced as text: ``compileCmdAndArgs``."""
    word = word.replace("{{$}}", json.dumps(_whole(given)))
    for name, value in given["inputs"]["parameterValues"].items():
        text = value if isinstance(value, str) else json.dumps(_whole(value), separators=(",", ":"))
        word = word.replace(f"{{{{$.inputs.parameters['{name}']}}}}", text)
    return word


def _whole(value: Any) -> Any:
    """Numbers as they are after Go's float64 and protojson: 2.0 is 2."""
    if isinstance(value, Mapping):
        return {k: _whole(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < 1e21 else number
    return value


def _each(artifacts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [artifact for held in artifacts.values() for artifact in held["artifacts"]]


def _outputs(component: Any, given: dict[str, Any], bucket: Bucket, *, succeeded: bool) -> dict[str, Any]:
    """``executeV2`` after the command: outputs, and of a failed step its log alone."""
    artifacts = given["outputs"]["artifacts"]
    if not succeeded:
        bucket.upload(*_file_and_uri(artifacts["executor-logs"]["artifacts"][0]))
        return {}
    told = _executor_output(Path(given["outputs"]["outputFile"]))
    values = told.get("parameterValues", {})
    for name, file in given["outputs"]["parameters"].items():
        if name not in values:
            raise LauncherError(
                f"failed to read output parameter name={json.dumps(name)} path={file['outputFile']}"
            )
    found = {}
    for name, held in artifacts.items():
        (artifact,) = held["artifacts"]
        if name != "executor-logs" and (said := told.get("artifacts", {}).get(name)):
            merged = {k: v for k, v in said["artifacts"][0].items() if k in ("uri", "custom_path") and v}
            more = {**artifact["metadata"], **said["artifacts"][0].get("metadata", {})}
            artifact = {**artifact, **merged, "metadata": more}
        path, uri = _file_and_uri(artifact)
        try:
            uploaded = bucket.upload(path, uri)
        except LauncherError as error:
            raise LauncherError(f"failed to upload output artifact {json.dumps(name)}: {error}") from None
        file = path.read_text() if path.is_file() else None
        found[name] = {
            "uri": uri,
            "metadata": artifact["metadata"],
            "file": file,
            "uploaded": uploaded,
        }
    assert set(component.output_definitions.artifacts) <= set(found)
    return {"parameters": values, "artifacts": found}


def _file_and_uri(artifact: Mapping[str, Any]) -> tuple[Path, str]:
    """Where the file of an output lies, and where it goes: ``retrieveArtifactPath``."""
    return Path(artifact.get("custom_path") or place(artifact["uri"])), artifact["uri"]


def _executor_output(path: Path) -> dict[str, Any]:
    """``getExecutorOutputFile``: protojson knows no other field, and no NaN."""
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    def no_constant(text: str) -> None:
        raise LauncherError(f"failed to unmarshall ExecutorOutput in file {path}: invalid value {text}")

    try:
        found: dict[str, Any] = json.loads(path.read_text(), parse_constant=no_constant)
        json_format.ParseDict(found, pipeline_spec_pb2.ExecutorOutput())
    except (ValueError, json_format.Error) as error:
        raise LauncherError(f"failed to unmarshall ExecutorOutput in file {path}: {error}") from None
    return found


# Everything of this machine, but a root of its own in which /s3, /tmp and /dev are new, a user may write only
# to the scratch volumes of a pod, and the homes of people are not there. $1: where; $KEEP: seen as it is.
_SCRIPT = """
set -e
new=$1; shift
mount -t tmpfs -o mode=755 none "$new"
for path in /*; do
  case $path in /tmp|/s3|/root|/home|/dev) continue;; esac
  if [ -L "$path" ]; then cp -P "$path" "$new$path"
  elif [ -d "$path" ]; then mkdir "$new$path"; mount --rbind "$path" "$new$path"; fi
done
mkdir "$new/dev" && mount -t tmpfs -o mode=755 none "$new/dev"
for path in null zero full random urandom tty; do
  touch "$new/dev/$path"; mount --bind "/dev/$path" "$new/dev/$path"
done
ln -s /proc/self/fd "$new/dev/fd"
ln -s /proc/self/fd/1 "$new/dev/stdout"; ln -s /proc/self/fd/2 "$new/dev/stderr"
mkdir -m 1777 "$new/dev/shm" && touch "$new/dev/termination-log" && chmod 666 "$new/dev/termination-log"
for path in s3 tmp .local .cache .config; do mkdir -m 1777 "$new/$path"; done
for path in $KEEP; do mkdir -p "$new$path"; mount --bind "$path" "$new$path"; done
exec chroot $AS "$new" "$@"
"""


def as_pod(folder: Path, compiled: Path, task: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    """Run a component of a compiled pipeline in `folder`, which it sees, and return what the launcher would
    publish: ``code``, ``log``, ``message`` (the termination log), and of a success ``parameters`` and
    ``artifacts``. The task: ``run``, ``task``, ``parameters``, and maybe ``component`` and ``artifacts``.
    """
    root = folder / "root"
    keep = [str(folder), str(Path(__file__).parents[2]), sys.prefix, sys.base_prefix]
    root.mkdir(exist_ok=True)
    (folder / "task.json").write_text(json.dumps(task))
    inside = [sys.executable, str(Path(__file__).resolve()), str(compiled), str(folder / "task.json")]
    user = "" if why_root() else f"--userspec={USER}:{USER}"
    if user:
        folder.chmod(0o777)  # pytest's folders are private to root
    answer = subprocess.run(
        [*_unshare(), "sh", "-c", _SCRIPT, "sh", str(root), *inside],
        env={**os.environ, **environ, "HOME": "/", "KEEP": " ".join(keep), "AS": user},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def _unshare() -> list[str]:
    return ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def why_not() -> str | None:
    """Why this machine lets nobody have mounts of his own; None when it does."""
    try:
        answer = subprocess.run(
            [*_unshare(), "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "there is no unshare here (Linux alone has it)"
    return answer.stderr.strip() or None


def why_root() -> str | None:
    """Why the steps of this machine's pods run as root of a user namespace; None: they do not."""
    return None if os.geteuid() == 0 else "only root may give a process another user"


if __name__ == "__main__":
    main(*sys.argv[1:])
