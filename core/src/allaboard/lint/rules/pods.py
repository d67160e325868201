"""Rules about what pods are made of: volumes, variables, containers, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import MANIFEST, Container, Group, View, items, mapping
from allaboard.text.redaction import hidden_value
from allaboard.text.untrusted import show

_SHELL = re.compile(r"(.*/)?(ba|da|z|k)?sh")
_SHELL_OPTION = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
_SWALLOWS = re.compile(r"(\|\|\s*(true|:)|;\s*exit\s+0|;\s*(true|:))\s*;?\s*$")
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_UNBUFFERED = re.compile(r"-[a-zA-Z]*u[a-zA-Z]*")
_LOADS = frozenset({"pytorch", "tensorflow", "paddle", "jax", "mxnet", "mpi"})
"""Frameworks whose processes share memory with each other, or with their data loaders."""


@rule(
    "shm_missing",
    "warning",
    "/dev/shm has 64 MiB",
    "Data loaders and NCCL share memory there, and 64 MiB end in `Bus error` or `No space left on device`. A "
    "volume in memory has room; what is written there counts towards the memory limit.",
    "mount an emptyDir with medium: Memory at /dev/shm",
    reads=(MANIFEST,),
)
def shm_missing(view: View) -> Iterator[Hit]:
    """containerd and CRI-O give a container 64 MiB of /dev/shm; an emptyDir in memory is the field's answer
    (PyTorch's Dataset documentation, NCCL's troubleshooting guide). Jobs are rendered with one.
    """
    if not _LOADS & {*view.engine.FRAMEWORKS}:
        return
    for group, trainer in view.trainers:
        if group.role == "launcher":
            continue
        mounts = [mapping(mount).get("mountPath") for mount in items(trainer.fields.get("volumeMounts"))]
        if "/dev/shm" not in [str(path).rstrip("/") for path in mounts]:
            yield Hit(view.container(group, trainer, "volumeMounts"))


@rule(
    "host_path",
    "warning",
    "a volume is a folder of the node",
    "Another node has another folder, or none: a member that is placed elsewhere sees no data and no "
    "checkpoints. Pod Security forbids it at its levels baseline and restricted.",
    "use a persistentVolumeClaim, or a store like s3://; for node-local SSD a generic ephemeral volume",
    job_fix="say pvc or claim in storage, or a store like s3://; for node-local SSD "
    "ephemeral: {size: ..., storage_class: ...}",
)
def host_path(view: View) -> Iterator[Hit]:
    """Kubernetes, volumes: hostPath, and the Pod Security Standards (baseline)."""
    for group in view.groups:
        for n, volume in enumerate(items(group.pod.get("volumes"))):
            path = mapping(mapping(volume).get("hostPath")).get("path")
            # /dev/shm and devices of the node are of one node anyway.
            if isinstance(path, str) and not path.startswith("/dev/"):
                at = view.volume(group, n, volume)
                yield Hit(f"{at}.{'host_path' if at.startswith('storage[') else 'hostPath'}", show(path))


@rule(
    "secret_in_plain_text",
    "warning",
    "a variable whose name says secret has its value in the text",
    "Whoever may read the job may read the value: `kubectl get`, the records of the run, version control.",
    "put the value into a Secret and take it with valueFrom.secretKeyRef",
    job_fix="put the value into a Secret and name it under secrets: [{name: NAME, env: true}]",
)
def secret_in_plain_text(view: View) -> Iterator[Hit]:
    """Kubernetes, good practices for Secrets. Which names say secret: `allaboard.text.redaction`. The
    name of a file, like that of GOOGLE_APPLICATION_CREDENTIALS, is none.
    """
    for group, container in view.containers:
        for n, name, value in container.environment:
            is_file = isinstance(value, str) and value.startswith(("/", "$("))
            if isinstance(value, str) and not is_file and hidden_value(name, value):
                yield Hit(view.variable(group, container, n, name), show(name))


@rule(
    "sidecar_blocks_the_end",
    "warning",
    "a container beside the one that trains keeps the pod running",
    "A pod has ended when all its containers have. A proxy or an agent that never exits leaves the job "
    "Running, and its GPUs held, after the training is over.",
    "move it under initContainers with restartPolicy: Always (a native sidecar, Kubernetes 1.29)",
)
def sidecar_blocks_the_end(view: View) -> Iterator[Hit]:
    """Training Operator: the phase of a pod decides, which is Running while one container runs; KEP-753."""
    for group, container in view.containers:
        if not container.trains and not container.begins:
            yield Hit(view.whole(group, container), show(container.name) if container.name else "")


@rule(
    "istio_sidecar",
    "warning",
    "Istio's proxy is injected into the pods",
    "The proxy goes on when the training has ended, unless it is a native sidecar, and it stands between "
    "members whose collectives are no HTTP: the job never ends, or never begins.",
    'set the label sidecar.istio.io/inject to "false"',
)
def istio_sidecar(view: View) -> Iterator[Hit]:
    """Istio, sidecar injection: the label, and the older annotation, of a pod."""
    for group in view.groups:
        for kind in ("labels", "annotations"):
            if str(mapping(group.metadata.get(kind)).get("sidecar.istio.io/inject")).lower() == "true":
                yield Hit(view.metadata(group, kind, "sidecar.istio.io/inject"))


@rule(
    "failure_swallowed",
    "error",
    "the shell ends with 0 whatever the training says",
    "The operator knows a member by its exit code. One that ends with 0 after a failure makes the job "
    "Succeeded, and nothing is started again.",
    "let the command's own exit code through: take `|| true` or `; exit 0` out",
)
def failure_swallowed(view: View) -> Iterator[Hit]:
    """POSIX shell: the exit code of a list is that of its last command."""
    for group, container, script in _scripts(view):
        if _SWALLOWS.search(script):
            yield Hit(_line_path(view, group, container), show(script.strip().splitlines()[-1]))


@rule(
    "failure_unnoticed",
    "warning",
    "a failing step of the shell's script does not end it",
    "Without `set -e` a failed preparation goes on into the training, and without `pipefail` the exit code "
    "of a pipeline is that of its last part: `python train.py | tee log` always succeeds.",
    "begin the script with `set -euo pipefail` (bash), or run the program without a shell",
)
def failure_unnoticed(view: View) -> Iterator[Hit]:
    """POSIX shell: pipelines and lists; bash: set -e, set -o pipefail. A ``;`` or a new line goes on after a
    failure, ``&&`` does not.
    """
    for group, container, script in _scripts(view):
        if _SWALLOWS.search(script):
            continue  # the error about it says enough
        stops = re.search(r"\bset\s+-[a-z]*e|\bset\s+-o\s+errexit", script) or _has_option(container, "e")
        steps = [s for s in re.split(r"\n|;", _without_quotes(script)) if s.strip() and not _harmless(s)]
        pipes = re.search(r"(?<!\|)\|(?!\|)", _without_quotes(script)) and "pipefail" not in script
        pipes = pipes and "pipefail" not in " ".join(container.line)
        if (len(steps) > 1 and not stops) or pipes:
            yield Hit(_line_path(view, group, container))


@rule(
    "output_buffered",
    "advice",
    "Python's output waits in a buffer",
    "Its operator sets no PYTHONUNBUFFERED: lines show up late in the log, and those of a member that is "
    "killed are lost, the reason of its end among them.",
    "write python -u, or set PYTHONUNBUFFERED to 1",
)
def output_buffered(view: View) -> Iterator[Hit]:
    """Python, -u. Which operators set the variable: envvar.go of each kind of the Training Operator."""
    if "PYTHONUNBUFFERED" in getattr(view.engine, "INJECTED", ()):
        return
    for group in view.groups:
        for container in group.trainers:
            line = container.line
            is_python = bool(line) and _PYTHON.fullmatch(line[0])
            if is_python and not container.variable("PYTHONUNBUFFERED"):
                options = [word for word in line[1:] if word.startswith("-")][:3]
                if not any(_UNBUFFERED.fullmatch(word) for word in options):
                    yield Hit(_line_path(view, group, container))


@rule(
    "variable_overridden",
    "warning",
    "the operator sets this variable, and its value wins",
    "The operator appends its own variables after those of the template, so that the value written here is "
    "never seen.",
    "take it out, or use another name",
    reads=(MANIFEST,),
)
def variable_overridden(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, envvar.go of each kind: appended without looking for a variable of the same
    name. `allaboard check` says it of jobs.
    """
    injected: frozenset[str] = getattr(view.engine, "INJECTED", frozenset())
    for group in view.groups:
        for container in group.containers:
            for n, name, _ in () if container.begins else container.environment:
                if name in injected and name != "PYTHONUNBUFFERED":
                    yield Hit(f"{container.at}.env[{n}]", show(name))


def _scripts(view: View) -> Iterator[tuple[Group, Container, str]]:
    """The scripts that are handed to a shell: ``[sh, -c, SCRIPT]``, also with the script in args. Workers
    that wait for what a launcher starts in them end for nobody.
    """
    launched = any(group.role == "launcher" for group in view.groups)
    for group in view.groups:
        if launched and group.role != "launcher":
            continue
        for container in group.trainers:
            line = container.line
            if len(line) < 3 or not _SHELL.fullmatch(line[0]):
                continue
            for n, word in enumerate(line[1:-1], 1):
                if _SHELL_OPTION.fullmatch(word):
                    yield group, container, line[n + 1]
                    break


def _line_path(view: View, group: Group, container: Container) -> str:
    """Path of the field that holds the last part of a command line."""
    return view.container(group, container, "args" if container.fields.get("args") else "command")


def _has_option(container: Container, letter: str) -> bool:
    return any(re.fullmatch(rf"-[a-z]*{letter}[a-z]*", word) for word in container.line[1:-1])


def _without_quotes(script: str) -> str:
    """The script without what stands in quotes, comments, and lines that go on in the next one."""
    script = re.sub(r"'[^']*'|\"[^\"]*\"", "''", script.replace("\\\n", " "))
    return re.sub(r"(^|\s)#[^\n]*", " ", script)


def _harmless(step: str) -> bool:
    """A step that cannot fail, or whose failure changes nothing."""
    return bool(re.match(r"\s*(export\b|echo\b|set\b|ulimit\b|trap\b|exit\b|[A-Z_]+=\S*\s*$|&&)", step))
