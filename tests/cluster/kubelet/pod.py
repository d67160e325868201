"""One pod: from the moment it is bound to the node until its object is gone.

One task lives the pod's life (volumes, sandbox, init containers, containers, until they are over for good or
a stop is asked for), one writes its status whenever something changed. What is known of the containers is in
``self.containers`` alone; the status follows from it (``status.py``).
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.cluster.kubelet import images, names, probes
from tests.cluster.kubelet.api import ApiError
from tests.cluster.kubelet.environment import (
    ConfigError,
    Facts,
    Sources,
    command_line,
    environment,
    referred,
)
from tests.cluster.kubelet.logs import Log
from tests.cluster.kubelet.processes import Spawned, SpawnFailed
from tests.cluster.kubelet.pulls import duration, pulled
from tests.cluster.kubelet.quantity import quantity
from tests.cluster.kubelet.run import Program, Run, identity, not_started
from tests.cluster.kubelet.status import (
    Container,
    Sandbox,
    should_restart,
    stamp,
    status_of,
    waiting,
)
from tests.cluster.kubelet.volumes import Mounted, VolumeError, Volumes, used

if TYPE_CHECKING:
    from tests.cluster.kubelet.node import Node

Object = dict[str, Any]

WRITTEN = ("configMap", "secret", "downwardAPI", "projected")
"""Kinds of volumes whose files the kubelet writes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a pod is taken down before its end, and how long its containers may take."""

    grace: float
    sandbox: dict[str, Any]
    """What the status says of it: fields of ``Sandbox``."""


class Pod:
    """A pod of a node."""

    def __init__(self, node: Node, manifest: Object, address_number: int) -> None:
        self.node, self.kubelet = node, node.kubelet
        self.manifest = manifest
        self.uid: str = manifest["metadata"]["uid"]
        self.address = node.kubelet.network.pod_address(node.number, address_number)
        self.address_number = address_number
        self.folder = self.kubelet.folder / "pods" / self.uid
        self.sandbox = Sandbox(host_ip=node.address)
        self.containers: dict[str, Container] = {}
        self.runs: dict[str, Run] = {}
        self.logs: dict[str, dict[str, Log]] = {}
        """All runs' logs of a container, by the run's containerID."""
        self.mounted = Mounted()
        self.stopping = False
        self._sandbox_process: Spawned | None = None
        self._dirty = asyncio.Event()
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._deleted = asyncio.Event()
        """It is to go: its object is marked, or gone."""
        self._gone = False
        self._volumes = Volumes(
            self.kubelet.api, self.folder / "volumes", self.kubelet.claims, self.kubelet.buckets
        )
        self._sent: Object | None = None
        self._begin()

    # --- what the node tells it -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def created(self) -> str:
        return str(self.manifest["metadata"]["creationTimestamp"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])

    @property
    def spec(self) -> Object:
        spec: Object = self.manifest["spec"]
        return spec

    @property
    def where(self) -> str:
        return f"{self.name}_{self.namespace}({self.uid})"

    def update(self, manifest: Object) -> None:
        """The object changed; it may be marked for deletion now."""
        self.manifest = manifest
        meta = manifest["metadata"]
        if meta.get("deletionTimestamp"):
            grace = meta.get("deletionGracePeriodSeconds")
            self.stop(Stop(30.0 if grace is None else float(grace), {}))
            self._deleted.set()

    def gone(self) -> None:
        """The object does not exist any more: no grace, no status."""
        self._gone = True
        self.stop(Stop(0.0, {}))
        self._deleted.set()

    def stop(self, order: Stop) -> None:
        """Take it down; the first order stands, a later one may only shorten the grace."""
        if not self._stop.done():
            self._stop.set_result(order)
        elif order.grace == 0:
            for run in self.runs.values():
                run.send(signal.SIGKILL)

    # --- its life -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """What is known before anything is done; of an earlier kubelet's pod, what it left."""
        status = self.manifest.get("status") or {}
        earlier = {
            c["name"]: c
            for c in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        }
        init = self.spec.get("initContainers") or []
        for spec in [*init, *self.spec["containers"]]:
            is_init = spec in init
            found = Container(
                spec["name"],
                spec["image"],
                waiting("PodInitializing" if init else "ContainerCreating"),
                is_init=is_init,
                is_sidecar=is_init and spec.get("restartPolicy") == "Always",
            )
            before = earlier.get(spec["name"])
            if before is not None:
                found = _taken_over(found, before)
            self.containers[spec["name"]] = found
        self.sandbox = replace(self.sandbox, start_time=status.get("startTime") or stamp(time.time()))

    async def live(self) -> None:
        """All of it. Ends when the pod's object is gone and nothing of it is left here."""
        publishing = asyncio.create_task(self._publish())
        looking_after = asyncio.create_task(self._look_after())
        try:
            work = asyncio.create_task(self._work())
            stop: asyncio.Future[Any] = self._stop
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            work.cancel()
            await asyncio.wait({work})
            order = self._stop.result() if stop.done() else Stop(self._grace(), {})
            if not work.cancelled() and (error := work.exception()) is not None:
                order = _broken(error)
            self.stopping = True
            self.sandbox = replace(self.sandbox, **order.sandbox)
            self.changed()
            await self._kill_all(order.grace)
            self._tear_down()
            self.changed()
            await self._deleted.wait()
            publishing.cancel()
            if not self._gone:
                await self.node.reachable()
                await self._send_status()
                await asyncio.sleep(self.kubelet.settings.unmount)
                await self.kubelet.api.insist(
                    lambda: self.kubelet.api.delete(self._path(), uid=self.uid, grace=0)
                )
        finally:
            publishing.cancel()
            looking_after.cancel()
            for run in self.runs.values():
                run.send(signal.SIGKILL)
            self._tear_down()
            await asyncio.to_thread(shutil.rmtree, self.folder, True)

    async def _work(self) -> None:
        """Until every container is over for good."""
        if (status := self.manifest.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self.sandbox = replace(
                self.sandbox,
                phase=status["phase"],
                reason=status.get("reason", ""),
                message=status.get("message", ""),
                pod_ip=status.get("podIP", ""),
            )
            return
        if refusal := self.node.refusal(self):
            self.event("Warning", refusal[0], refusal[1])
            self.sandbox = replace(
                self.sandbox, phase="Failed", reason=refusal[0], message=f"Pod was rejected: {refusal[1]}"
            )
            self.containers.clear()
            return
        deadline = self._deadline()
        try:
            async with asyncio.timeout(deadline):
                await self._run_all()
        except TimeoutError:
            message = "Pod was active on the node longer than the specified deadline"
            self.event("Normal", "DeadlineExceeded", message)
            told = {"phase": "Failed", "reason": "DeadlineExceeded", "message": message}
            self.stop(Stop(self._grace(), told))

    def _grace(self) -> float:
        seconds = self.spec.get("terminationGracePeriodSeconds")
        return 30.0 if seconds is None else float(seconds)

    def _deadline(self) -> float | None:
        seconds = self.spec.get("activeDeadlineSeconds")
        return None if seconds is None else float(seconds)

    async def _run_all(self) -> None:
        await self._set_up()
        sidecars: list[asyncio.Task[None]] = []
        try:
            for spec in self.spec.get("initContainers") or []:
                if self.containers[spec["name"]].is_sidecar:
                    sidecars.append(asyncio.create_task(self._keep_running(spec)))
                    await self._until(lambda s=spec: self.containers[s["name"]].started)  # type: ignore[misc]
                else:
                    await self._keep_running(spec)
                    ended = self.containers[spec["name"]].terminated
                    if ended is None or ended["exitCode"] != 0:
                        return
            async with asyncio.TaskGroup() as mains:
                for spec in self.spec["containers"]:
                    mains.create_task(self._keep_running(spec))
        finally:
            for sidecar in sidecars:
                sidecar.cancel()

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            await asyncio.sleep(0.02)

    # --- set-up and take-down -------------------------------------------------------------------------------

    async def _set_up(self) -> None:
        failures = 0
        while True:
            try:
                self.mounted = await self._volumes.mount(self.manifest, self._facts())
                break
            except VolumeError as error:
                failures += 1
                self.event("Warning", "FailedMount", str(error))
                self.changed()
                await asyncio.sleep(self.kubelet.settings.mount.wait(failures))
        while True:
            try:
                await self._make_sandbox()
                return
            except SpawnFailed as error:
                message = f"Failed to create pod sandbox: rpc error: code = Unknown desc = {error}"
                self.event("Warning", "FailedCreatePodSandBox", message)
                await asyncio.sleep(1)

    async def _make_sandbox(self) -> None:
        hostname = self.spec.get("hostname") or self.name[:63].rstrip("-.")
        etc = self.folder / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "hostname").write_text(f"{hostname}\n")
        (etc / "hosts").write_text(names.hosts_file(self.manifest, self.address))
        (etc / "resolv.conf").write_text(names.resolv_conf(self.kubelet.network.router, self.namespace))
        asked = self.kubelet.spawner.ask(
            {
                "kind": "sandbox",
                "hostname": hostname,
                "tmpfs": self.mounted.tmpfs,
                **self.kubelet.network.wiring(self.address),
            }
        )
        self._sandbox_process = asked
        await asked.begun("ready")
        self.sandbox = replace(self.sandbox, pod_ip=self.address)
        self.changed()

    def _tear_down(self) -> None:
        if self._sandbox_process is not None:
            self._sandbox_process.close()
            self._sandbox_process = None

    async def _look_after(self) -> None:
        """While it runs: the files of ConfigMaps and the like are as their sources, empty folders within
        limits.
        """
        volumes = self.spec.get("volumes") or []
        written = any(kind in volume for volume in volumes for kind in WRITTEN if kind != "projected")
        limits = [
            (volume["name"], volume["emptyDir"]["sizeLimit"])
            for volume in volumes
            if (volume.get("emptyDir") or {}).get("sizeLimit")
            and volume["emptyDir"].get("medium") != "Memory"
        ]
        while written or limits:
            await asyncio.sleep(self.kubelet.settings.refresh)
            if not self.sandbox.pod_ip or self.stopping:
                continue
            if written:
                await self._volumes.refresh(self.manifest, self._facts())
            for name, limit in limits:
                if await asyncio.to_thread(used, self.mounted.sources[name]) > quantity(limit):
                    self.evict(f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". ', 0)
                    return

    def evict(self, message: str, grace: float, conditions: tuple[Object, ...] = ()) -> None:
        """By the kubelet itself: phase Failed, reason Evicted; the object stays."""
        self.event("Warning", "Evicted", message)
        told = {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": conditions}
        self.stop(Stop(grace, told))

    # --- containers -----------------------------------------------------------------------------------------

    async def _keep_running(self, spec: Object) -> None:
        """Run it again and again as its restart policy wants; return when it is over for good."""
        name = spec["name"]
        failures = 0
        while True:
            run = None
            # One that an earlier kubelet left is over already: what follows decides on it as on any other.
            if self.containers[name].terminated is None or failures:
                run = await self._start(spec)
            if run is not None:
                await asyncio.shield(run.over)
            ended = self.containers[name].terminated
            assert ended is not None
            if (
                self.containers[name].is_init
                and ended["exitCode"] == 0
                and not self.containers[name].is_sidecar
            ):
                return
            if not should_restart(self.manifest, name, ended["exitCode"]):
                return
            if run is not None and time.time() - run.started_at > self.kubelet.settings.forgiven:
                failures = 0
            if not failures:  # the first restart is at once
                await asyncio.sleep(self.kubelet.settings.again)
            else:
                wait = self.kubelet.settings.crash.wait(failures)
                self.event(
                    "Warning",
                    "BackOff",
                    f"Back-off restarting failed container {name} in pod {self.where}",
                    spec,
                )
                text = f"back-off {duration(wait)} restarting failed container={name} pod={self.where}"
                self.set(name, state=waiting("CrashLoopBackOff", text), last={"terminated": ended})
                await asyncio.sleep(wait)
            failures += 1
            last = {"terminated": ended}
            self.set(name, last=last, restarts=self.containers[name].restarts + 1, quiet=True)

    async def _start(self, spec: Object) -> Run | None:
        """Pull, configure, start. None when the program could not be started: then the container is
        terminated.
        """
        name = spec["name"]
        image = await pulled(self, spec)
        while True:
            try:
                program = await self._program(spec, image)
                self.event("Normal", "Created", "Container created", spec)
                run = await Run.start(self, spec, image, program, self.containers[name].restarts)
                break
            except ConfigError as error:
                self.event("Warning", "Failed", f"Error: {error}", spec)
                self.set(name, state=waiting("CreateContainerConfigError", str(error)))
                await asyncio.sleep(self.kubelet.settings.config)
            except SpawnFailed as error:
                text, ended = not_started(error)
                self.event("Warning", "Failed", f"Error: {text}", spec)
                self.set(name, state={"terminated": ended}, container_id=ended["containerID"])
                return None
        self.runs[name] = run
        self.logs.setdefault(name, {})[run.container_id] = run.log
        self.event("Normal", "Started", "Container started", spec)
        started = "startupProbe" not in spec
        self.set(
            name,
            state={"running": {"startedAt": stamp(run.started_at)}},
            container_id=run.container_id,
            image_id=images.image_id(spec["image"]),
            image=images.full_name(spec["image"]),
            started=started,
            ready=started and "readinessProbe" not in spec,
        )
        probing = asyncio.create_task(probes.watch(self, spec, run))

        def at_end(over: asyncio.Task[Object]) -> None:
            probing.cancel()
            ended = over.result()
            is_done = self.containers[name].is_init and ended["exitCode"] == 0
            self.set(name, state={"terminated": ended}, ready=is_done, started=False)

        run.over.add_done_callback(at_end)
        if hook := ((spec.get("lifecycle") or {}).get("postStart") or {}).get("exec"):
            code, _ = await run.execute_quietly(self.kubelet.spawner, hook["command"], 600)
            if code != 0:
                self.event("Warning", "FailedPostStartHook", "PostStartHook failed", spec)
                await self._kill(name, 2, "FailedPostStartHook")
        return run

    async def _program(self, spec: Object, image: images.Image) -> Program:
        """Raises ConfigError."""
        hostname = self.spec.get("hostname") or self.name[:63]
        own = {"PATH": images.PATH, "HOSTNAME": hostname, **image.env}
        base = self.node.service_variables()
        sources = await self._sources(spec)
        env = environment(self.manifest, spec, own, base, sources, self._facts())
        env.setdefault("HOME", "/root")
        argv = command_line(spec, image.entrypoint, image.command, env)
        return Program(argv, env, spec.get("workingDir") or image.working_dir, identity(self.manifest, spec))

    async def _sources(self, spec: Object) -> Sources:
        maps, secrets = referred(spec)
        root = f"/api/v1/namespaces/{self.namespace}"
        found_maps = {name: await self._look_up(f"{root}/configmaps/{name}") for name in maps}
        found_secrets = {name: await self._look_up(f"{root}/secrets/{name}") for name in secrets}
        return Sources(
            found_maps,
            {
                name: None
                if found is None
                else {k: base64.b64decode(v).decode() for k, v in (found.get("data") or {}).items()}
                for name, found in found_secrets.items()
            },
        )

    async def _look_up(self, path: str) -> Object | None:
        try:
            return await self.kubelet.api.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise ConfigError(error.message) from error
        except ConnectionError as error:
            raise ConfigError(str(error)) from error

    async def _kill_all(self, grace: float) -> None:
        """Stop what still runs: the main containers together, then the sidecars, last first."""
        sidecars = [c.name for c in self.containers.values() if c.is_sidecar]
        running = [name for name, c in self.containers.items() if c.running]
        await asyncio.gather(*(self._kill(name, grace) for name in running if name not in sidecars))
        for name in reversed([name for name in running if name in sidecars]):
            await self._kill(name, grace)
        # What did not run will not: a container that waits is left as it is, as a kubelet leaves it.

    async def _kill(self, name: str, grace: float, why: str = "") -> None:
        run = self.runs[name]
        self.event("Normal", "Killing", why or f"Stopping container {name}", run.spec)
        hook = (run.spec.get("lifecycle") or {}).get("preStop")
        if hook and grace > 0:
            began = time.monotonic()
            await self._before_stop(run, hook, grace)
            # The hook's time is part of the grace, but two seconds remain for the signal.
            grace = max(2.0, grace - (time.monotonic() - began))
        await run.kill(grace)

    async def _before_stop(self, run: Run, hook: Object, grace: float) -> None:
        if "exec" in hook:
            code, _ = await run.execute_quietly(self.kubelet.spawner, hook["exec"]["command"], grace)
            if code != 0:
                self.event("Warning", "FailedPreStopHook", "PreStopHook failed", run.spec)
        elif "sleep" in hook:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(run.over), min(grace, hook["sleep"]["seconds"]))

    def restart(self, name: str, why: str) -> None:
        """A liveness or startup probe gave up on it."""
        self._killing = asyncio.create_task(self._kill(name, self._grace(), why))

    # --- what it knows --------------------------------------------------------------------------------------

    @property
    def sandbox_pid(self) -> int:
        assert self._sandbox_process is not None
        return self._sandbox_process.pid

    def live_runs(self) -> list[Run]:
        return [run for name, run in self.runs.items() if self.containers[name].running]

    def is_written(self, volume: str) -> bool:
        """Whether its files are the kubelet's: containers see them read-only."""
        found = next(v for v in self.spec.get("volumes") or [] if v["name"] == volume)
        return any(kind in found for kind in WRITTEN)

    def _facts(self) -> Facts:
        return Facts(self.node.name, self.address, self.node.address, self.node.allocatable)

    def event(self, kind: str, reason: str, message: str, container: Object | None = None) -> None:
        self.kubelet.events.on_pod(self.node.name, self.manifest, kind, reason, message, container)

    # --- its status -----------------------------------------------------------------------------------------

    def set(self, name: str, *, quiet: bool = False, **changes: Any) -> None:
        """``quiet``: another change follows at once, the status can wait for it."""
        self.containers[name] = replace(self.containers[name], **changes)
        if not quiet:
            self.changed()

    def set_probed(self, name: str, *, started: bool | None = None, ready: bool | None = None) -> None:
        """What the probes found."""
        now = self.containers[name]
        new = replace(
            now,
            started=now.started if started is None else started,
            ready=now.ready if ready is None else ready,
        )
        if new != now:
            self.containers[name] = new
            self.changed()

    def changed(self) -> None:
        self._dirty.set()

    async def _publish(self) -> None:
        self._dirty.set()
        while True:
            await self._dirty.wait()
            await self.node.reachable()
            self._dirty.clear()
            await self._send_status()

    async def _send_status(self) -> None:
        """Nothing when nothing has changed. Insists."""
        status = status_of(
            self.manifest, list(self.containers.values()), self.sandbox, time.time(), stopping=self.stopping
        )
        if status == self._sent or self._gone:
            return
        body = {"metadata": {"uid": self.uid}, "status": _as_patch(status)}
        answers: list[Object] = []

        async def patch() -> None:
            answers.append(await self.kubelet.api.patch(f"{self._path()}/status", body))

        await self.kubelet.api.insist(patch)
        self._sent = status
        # Conditions that others have set meanwhile, and the times of ours.
        if answers and not self.manifest["metadata"].get("deletionTimestamp"):
            self.manifest = {**self.manifest, "status": answers[0]["status"]}

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


def _broken(error: BaseException) -> Stop:
    """A mistake of this kubelet: the pod ends with it, where whoever waits for the pod sees it."""
    traceback.print_exception(error)
    return Stop(0, {"phase": "Failed", "reason": "KubeletBroken", "message": repr(error)})


def _as_patch(status: Object) -> Object:
    """Strategic merge leaves what is not named; what a condition has no more must be named as null."""
    conditions = [{"reason": None, "message": None, **c} for c in status["conditions"]]
    patch = {**status, "conditions": conditions}
    if "podIPs" in status:  # it would keep the address that the pod had under an earlier kubelet
        patch["podIPs"] = [{"$patch": "replace"}, *status["podIPs"]]
    return patch


def _taken_over(fresh: Container, before: Object) -> Container:
    """A container of which the API server has a status from before this kubelet: its process is gone."""
    state, last = before.get("state") or {}, before.get("lastState") or {}
    known = replace(
        fresh,
        last=last,
        restarts=before["restartCount"],
        image=before["image"],
        image_id=before["imageID"],
        container_id=before.get("containerID", ""),
    )
    if "terminated" in state:
        ended = state["terminated"]
        return replace(known, state=state, ready=known.is_init and ended["exitCode"] == 0)
    if "running" in state:
        lost = {
            "exitCode": 137,
            "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated",
            "startedAt": None,
            "finishedAt": None,
        }
        return replace(known, state={"terminated": lost})
    return known
