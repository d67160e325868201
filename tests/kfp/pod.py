"""A step as a cluster runs it, without one: what kfp's driver and launcher do around a component's command.

    python pod.py COMPILED.yaml TASK.json      prints a JSON object: exit code, log, outputs

Places of artifacts are ``s3://`` uris, their files lie below ``/s3`` (so this is run where that may be
written: see `as_pod`), integers are integers, the pod's name is in the environment, and the outputs are
read as strictly as the launcher reads them (kubeflow/pipelines: backend/src/v2/component/launcher_v2.go).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

ROOT = "s3://pipelines/v2/artifacts"


def place(uri: str) -> Path:
    return Path(uri.replace("s3://", "/s3/", 1))


def main(compiled: str, task_file: str) -> None:
    import yaml
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    task = json.loads(Path(task_file).read_text())
    spec = json_format.ParseDict(yaml.safe_load(Path(compiled).read_text()), pipeline_spec_pb2.PipelineSpec())
    ((name, component),) = spec.components.items()
    box = json_format.MessageToDict(spec.deployment_spec)["executors"][component.executor_label]["container"]
    given = _executor_input(component, name.removeprefix("comp-"), task, json_format.MessageToDict)
    place(given["outputs"]["outputFile"]).parent.mkdir(parents=True)
    Path("/tmp/kfp/outputs").mkdir(parents=True)
    command = [
        word.replace("{{$}}", json.dumps(given)) for word in box.get("command", []) + box.get("args", [])
    ]
    pod = {"KFP_POD_NAME": "retrain-digits-abcde-1", "KFP_POD_UID": str(uuid.uuid4())}
    pod["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the image's own python3
    answer = subprocess.run(command, env={**os.environ, **pod}, capture_output=True, text=True, check=False)
    found: dict[str, Any] = {"code": answer.returncode, "log": answer.stdout + answer.stderr}
    if answer.returncode == 0:
        found |= _outputs(component, given)
    print(json.dumps(found))


def _executor_input(component: Any, name: str, task: dict[str, Any], as_dict: Any) -> dict[str, Any]:
    folder = f"{ROOT}/retrain-digits/{task['run']}/{name}/{task['task']}"
    known = component.input_definitions.parameters
    values = {k: as_dict(p.default_value) for k, p in known.items() if p.HasField("default_value")}
    values = {k: int(v) if known[k].parameter_type == 2 else v for k, v in values.items()} | task[
        "parameters"
    ]
    assert set(values) == set(known), set(known) - set(values)
    artifacts = {
        k: {
            "artifacts": [
                {"name": k, "uri": f"{folder}/{k}", "metadata": {}, "type": as_dict(a.artifact_type)}
            ]
        }
        for k, a in component.output_definitions.artifacts.items()
    }
    files = {k: {"outputFile": f"/tmp/kfp/outputs/{k}"} for k in component.output_definitions.parameters}
    out = {
        "parameters": files,
        "artifacts": artifacts,
        "outputFile": str(place(f"{folder}/output_metadata.json")),
    }
    return {"inputs": {"parameterValues": values}, "outputs": out}


def _outputs(component: Any, given: dict[str, Any]) -> dict[str, Any]:
    def no_constant(text: str) -> None:
        raise AssertionError(f"the launcher reads no {text}")

    text = Path(given["outputs"]["outputFile"]).read_text()
    out = json.loads(text, parse_constant=no_constant)
    assert set(out) <= {"parameterValues", "artifacts"}, "the launcher rejects unknown fields"
    missing = set(given["outputs"]["parameters"]) - set(out.get("parameterValues", {}))
    assert not missing, f"an output parameter that nobody wrote fails the step: {missing}"
    artifacts = {}
    for name in component.output_definitions.artifacts:
        (told,) = out["artifacts"][name]["artifacts"]
        assert set(told) <= {"name", "uri", "metadata", "custom_path"}
        file = place(told["uri"])
        artifacts[name] = {**told, "file": file.read_text() if file.is_file() else None}
    return {"parameters": out.get("parameterValues", {}), "artifacts": artifacts}


# Everything of this machine, but a root of its own in which /s3 and /tmp are new. $1: where; the rest of
# $KEEP: seen as is.
_SCRIPT = """
set -e
new=$1; shift
mount -t tmpfs none "$new"
for path in /*; do
  case $path in /tmp|/s3) continue;; esac
  if [ -L "$path" ]; then cp -P "$path" "$new$path"
  elif [ -d "$path" ]; then mkdir "$new$path"; mount --rbind "$path" "$new$path"; fi
done
mkdir "$new/s3" "$new/tmp"
for path in $KEEP; do mkdir -p "$new$path"; mount --bind "$path" "$new$path"; done
exec chroot "$new" "$@"
"""


def as_pod(folder: Path, compiled: Path, task: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    """Run a compiled component in `folder`, which it sees, and return what the launcher would have got."""
    root, keep = folder / "root", [str(folder), str(Path(__file__).parents[2]), sys.prefix]
    root.mkdir(exist_ok=True)
    (folder / "task.json").write_text(json.dumps(task))
    inside = [sys.executable, str(Path(__file__).resolve()), str(compiled), str(folder / "task.json")]
    answer = subprocess.run(
        [*_unshare(), "sh", "-c", _SCRIPT, "sh", str(root), *inside],
        env={**os.environ, **environ, "KEEP": " ".join(keep)}, capture_output=True, text=True, check=False,
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


if __name__ == "__main__":
    main(*sys.argv[1:])
