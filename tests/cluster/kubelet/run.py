"""One run of one container: what it is given, its process, its log, how it ended."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.kubelet import images
from tests.cluster.kubelet.cgroups import Cgroup
from tests.cluster.kubelet.environment import ConfigError, expanded
from tests.cluster.kubelet.logs import Log
from tests.cluster.kubelet.processes import Exit, Spawned, Spawner, SpawnFailed
from tests.cluster.kubelet.quantity import quantity
from tests.cluster.kubelet.status import EPOCH, stamp

if TYPE_CHECKING:
    from tests.cluster.kubelet.pod import Pod

Object = dict[str, Any]

MESSAGE_LIMIT = 4096
"""Bytes of a termination message."""
SHM = "size=65536k,mode=1777"
"""What a runtime gives a container whose pod mounts nothing over /dev/shm."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a container runs."""

    argv: Sequence[str]
    env: dict[str, str]
    cwd: str
    identity: dict[str, Any]
    """uid, gid, groups, privileges: fields of the spawner's request."""


class Run:
    """A container's process from its start to its end."""

    def __init__(self, spec: Object, program: Program, folder: Path, log: Log) -> None:
        self.spec, self.program, self.folder, self.log = spec, program, folder, log
        self.cgroup: Cgroup
        self.container_id = new_id()
        self.started_at = 0.0
        self.killed_as = ""
        """A reason that the process itself cannot tell: OOMKilled on request."""
        self.over: asyncio.Task[Object]
        """Gives the ``terminated`` state once it has ended and its log is complete."""
        self._process: Spawned
        self._readers: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, pod: Pod, spec: Object, image: images.Image, program: Program, restarts: int) -> Run:
        """Raises SpawnFailed."""
        name = spec["name"]
        folder = pod.folder / "containers" / f"{name}-{restarts}"
        log = Log(pod.folder / "logs" / name / f"{restarts}.log")
        run = cls(spec, program, folder, log)
        _make_root(folder)
        memory = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
        run.cgroup = pod.kubelet.cgroups.create(
            f"{pod.uid}-{name}-{restarts}", int(quantity(memory)) if memory else None
        )
        request = {
            "kind": "container",
            "sandbox": pod.sandbox_pid,
            "root": str(folder / "root"),
            "mounts": mounts(pod, spec, image, folder, program.env),
            **run._program_of_request(program),
        }
        try:
            run._process, run._readers = await run._spawn(pod.kubelet.spawner, request)
        except BaseException:
            log.end()
            run.cgroup.remove()
            raise
        run.started_at = time.time()
        run.over = asyncio.create_task(run._end())
        return run

    @property
    def pid(self) -> int:
        """Of its first process, in the kubelet's PID namespace."""
        return self._process.pid

    def send(self, number: int) -> None:
        """A signal for its first process; nothing when it is over."""
        self._process.send(number)

    async def kill(self, grace: float) -> None:
        """SIGTERM, then, after so many seconds, SIGKILL; back when it has ended."""
        if grace > 0:
            self.send(_stop_signal(self.spec))
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.over), grace)
        self.send(signal.SIGKILL)
        await asyncio.shield(self.over)

    async def execute(
        self, spawner: Spawner, argv: Sequence[str], fds: Sequence[int], *, tty: bool = False
    ) -> Spawned:
        """One more process in the container with these as stdin, stdout, stderr. Raises SpawnFailed."""
        program = Program(argv, self.program.env, self.program.cwd, self.program.identity)
        request = {"kind": "exec", "pid": self.pid, "tty": tty, **self._program_of_request(program)}
        process = spawner.ask(request, fds)
        await process.begun("started")
        return process

    async def execute_quietly(
        self, spawner: Spawner, argv: Sequence[str], limit: float
    ) -> tuple[int | None, str]:
        """The exit code (None: it did not end in time) and the output of a command in the container."""
        out, into = os.pipe()
        null = os.open("/dev/null", os.O_RDWR)
        told: list[bytes] = []
        reader = asyncio.create_task(pump(out, told.append))
        try:
            process = await self.execute(spawner, argv, [null, into, into])
        except SpawnFailed as error:
            return 126, str(error)
        finally:
            os.close(into)
            os.close(null)
        try:
            ended = await asyncio.wait_for(process.ended(), limit)
        except TimeoutError:
            process.close()
            reader.cancel()
            return None, b"".join(told).decode(errors="replace")
        await reader
        return ended.code, b"".join(told).decode(errors="replace")

    def freeze(self, frozen: bool) -> None:
        self.cgroup.freeze(frozen)

    def _program_of_request(self, program: Program) -> Object:
        return {
            "argv": list(program.argv),
            "env": program.env,
            "cwd": program.cwd,
            "cgroups": self.cgroup.paths,
            **program.identity,
        }

    async def _spawn(self, spawner: Spawner, request: Object) -> tuple[Spawned, list[asyncio.Task[None]]]:
        out, err = os.pipe(), os.pipe()
        null = os.open("/dev/null", os.O_RDONLY)
        readers = [
            asyncio.create_task(pump(out[0], lambda data: self.log.write("stdout", data))),
            asyncio.create_task(pump(err[0], lambda data: self.log.write("stderr", data))),
        ]
        try:
            process = spawner.ask(request, [null, out[1], err[1]])
        finally:
            for fd in (null, out[1], err[1]):
                os.close(fd)
        await process.begun("started")
        return process, readers

    async def _end(self) -> Object:
        ended = await self._process.ended()
        finished = time.time()
        await asyncio.gather(*self._readers)
        self.log.end()
        reason = self.killed_as or _reason(ended, self.cgroup.oom_kills())
        await asyncio.to_thread(self.cgroup.remove)
        found: Object = {
            "exitCode": ended.code,
            "reason": reason,
            "startedAt": stamp(self.started_at),
            "finishedAt": stamp(finished),
            "containerID": self.container_id,
        }
        if message := self._message(ended.code):
            found["message"] = message
        await asyncio.to_thread(shutil.rmtree, self.folder, True)
        return found

    def _message(self, code: int) -> str:
        """What the program left as its last words, or the end of its log where the policy says so."""
        with suppress(OSError):
            if text := (self.folder / "message").read_bytes():
                return text[:MESSAGE_LIMIT].decode(errors="replace")
        if code != 0 and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return self.log.last(80, 2048)
        return ""


def not_started(error: SpawnFailed) -> tuple[str, Object]:
    """The message and the ``terminated`` state of a container whose program could not be run."""
    text = (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
        f"runc create failed: unable to start container process: error during container init: {error}"
    )
    return text, {
        "exitCode": 128,
        "reason": "StartError",
        "message": text,
        "startedAt": EPOCH,
        "finishedAt": stamp(time.time()),
        "containerID": new_id(),
    }


def new_id() -> str:
    return f"containerd://{secrets.token_hex(32)}"


def identity(pod: Object, spec: Object) -> dict[str, Any]:
    """Whom the container runs as: its own security context before the pod's. Raises ConfigError."""
    of_pod = pod["spec"].get("securityContext") or {}
    security = {**of_pod, **(spec.get("securityContext") or {})}
    uid = security.get("runAsUser") or 0
    if security.get("runAsNonRoot") and uid == 0:
        raise ConfigError("container has runAsNonRoot and image will run as root")
    groups = [*(of_pod.get("supplementalGroups") or [])]
    if of_pod.get("fsGroup") is not None:
        groups.append(of_pod["fsGroup"])
    return {
        "uid": uid,
        "gid": security.get("runAsGroup") or 0,
        "groups": groups,
        "readonly_root": bool(security.get("readOnlyRootFilesystem")),
        "privileged": bool(security.get("privileged")),
        "no_new_privileges": security.get("allowPrivilegeEscalation") is False,
    }


def mounts(pod: Pod, spec: Object, image: images.Image, folder: Path, env: dict[str, str]) -> list[Object]:
    """Everything that is mounted below the container's root, in order. Raises ConfigError."""
    made: list[Object] = []
    for number, (target, lower) in enumerate(sorted(pod.kubelet.images.layers(image).items())):
        upper, work = str(folder / f"upper{number}"), str(folder / f"work{number}")
        made.append({"type": "overlay", "target": target, "lower": lower, "upper": upper, "work": work})
    made += [
        {"type": "proc", "target": "/proc"},
        {"type": "sys", "target": "/sys"},
        {"type": "dev", "target": "/dev"},
        {"type": "tmpfs", "target": "/dev/shm", "options": SHM},
    ]
    for name in ("hosts", "hostname", "resolv.conf"):
        made.append({"type": "bind", "source": str(pod.folder / "etc" / name), "target": f"/etc/{name}"})
    path = spec.get("terminationMessagePath") or "/dev/termination-log"
    made.append({"type": "bind", "source": str(folder / "message"), "target": path})
    # A mount below another's target must come after it.
    for mount in sorted(spec.get("volumeMounts") or [], key=lambda m: m["mountPath"].count("/")):
        source = pod.mounted.sources[mount["name"]]
        below = expanded(mount["subPathExpr"], env) if mount.get("subPathExpr") else mount.get("subPath", "")
        if below.startswith("/") or ".." in below.split("/"):
            raise ConfigError(f"subPath {below!r} must be a relative path without '..'")
        written = pod.is_written(mount["name"])
        if below and written:
            # Bound as the file that it is now: what changes later is not seen, as with a real kubelet.
            source = Path(os.path.realpath(source / below))
            if not source.exists():
                raise ConfigError(f'failed to prepare subPath for volumeMount "{mount["name"]}"')
        elif below:
            source = source / below
        made.append(
            {
                "type": "bind",
                "source": str(source),
                "target": mount["mountPath"],
                "readonly": bool(mount.get("readOnly")) or written,
                "make": bool(below) and not written,
            }
        )
    return made


async def pump(fd: int, take: Any) -> None:
    """Hand on what comes through a pipe until its other end is closed; then close this one."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    over = loop.create_future()

    def ready() -> None:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if data:
            take(data)
        elif not over.done():
            over.set_result(None)
            loop.remove_reader(fd)

    loop.add_reader(fd, ready)
    try:
        await over
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _reason(ended: Exit, ooms: int) -> str:
    if ooms:
        return "OOMKilled"
    return "Completed" if ended.code == 0 else "Error"


def _stop_signal(spec: Object) -> int:
    name = ((spec.get("lifecycle") or {}).get("stopSignal")) or "SIGTERM"
    return int(getattr(signal, name, signal.SIGTERM))


def _make_root(folder: Path) -> None:
    """The empty tree that everything is mounted into."""
    root = folder / "root"
    for name in (
        "usr",
        "etc",
        "opt",
        "proc",
        "sys",
        "dev",
        "root",
        "home",
        "run",
        "srv",
        "mnt",
        "media",
        "var",
    ):
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp", "run/lock"):
        (root / name).mkdir(parents=True)
        (root / name).chmod(0o1777)
    for name in ("var/log", "var/lib", "var/cache"):
        (root / name).mkdir()
    (root / "var/run").symlink_to("/run")
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
    message = folder / "message"
    message.touch()
    message.chmod(0o666)
