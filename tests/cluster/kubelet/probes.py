"""Startup, readiness and liveness probes: exec, TCP and HTTP, in simple form."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cluster.kubelet.pod import Pod
    from tests.cluster.kubelet.run import Run

Object = dict[str, Any]


async def watch(pod: Pod, spec: Object, run: Run) -> None:
    """Probe a running container until it ends (the task is cancelled then)."""
    name = spec["name"]
    if "startupProbe" in spec:
        if not await _until_started(pod, spec, run):
            return
        pod.set_probed(name, started=True, ready="readinessProbe" not in spec)
    async with asyncio.TaskGroup() as tasks:
        if "readinessProbe" in spec:
            tasks.create_task(_readiness(pod, spec, run))
        if "livenessProbe" in spec:
            tasks.create_task(_liveness(pod, spec, run))


async def _until_started(pod: Pod, spec: Object, run: Run) -> bool:
    probe = spec["startupProbe"]
    failures = 0
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    while True:
        trouble = await _probed(pod, spec, run, probe)
        if trouble is None:
            return True
        failures += 1
        pod.event("Warning", "Unhealthy", f"Startup probe failed: {trouble}", spec)
        if failures >= probe.get("failureThreshold", 3):
            pod.restart(spec["name"], f"Container {spec['name']} failed startup probe, will be restarted")
            return False
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def _readiness(pod: Pod, spec: Object, run: Run) -> None:
    probe = spec["readinessProbe"]
    good = bad = 0
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    while True:
        trouble = await _probed(pod, spec, run, probe)
        if trouble is None:
            good, bad = good + 1, 0
            if good >= probe.get("successThreshold", 1):
                pod.set_probed(spec["name"], ready=True)
        else:
            good, bad = 0, bad + 1
            pod.event("Warning", "Unhealthy", f"Readiness probe failed: {trouble}", spec)
            if bad >= probe.get("failureThreshold", 3):
                pod.set_probed(spec["name"], ready=False)
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def _liveness(pod: Pod, spec: Object, run: Run) -> None:
    probe = spec["livenessProbe"]
    failures = 0
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    while True:
        trouble = await _probed(pod, spec, run, probe)
        failures = 0 if trouble is None else failures + 1
        if trouble is not None:
            pod.event("Warning", "Unhealthy", f"Liveness probe failed: {trouble}", spec)
        if failures >= probe.get("failureThreshold", 3):
            pod.restart(spec["name"], f"Container {spec['name']} failed liveness probe, will be restarted")
            return
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def _probed(pod: Pod, spec: Object, run: Run, probe: Object) -> str | None:
    """What is wrong; None when nothing is."""
    limit = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        code, text = await run.execute_quietly(pod.kubelet.spawner, probe["exec"]["command"], limit)
        if code is None:
            return f"command timed out: {probe['exec']['command']} timed out after {limit:g}s"
        return None if code == 0 else text.strip()
    if "tcpSocket" in probe or "httpGet" in probe:
        target = probe.get("tcpSocket") or probe["httpGet"]
        host = target.get("host") or pod.address
        port = _port(spec, target["port"])
        try:
            async with asyncio.timeout(limit):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    return await _http(reader, writer, host, target) if "httpGet" in probe else None
                finally:
                    writer.close()
        except TimeoutError:
            return f"dial tcp {host}:{port}: i/o timeout"
        except OSError as error:
            return f"dial tcp {host}:{port}: connect: {(error.strerror or str(error)).lower()}"
    return "this kubelet knows exec, tcpSocket and httpGet probes"


async def _http(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, target: Object
) -> str | None:
    lines = [f"GET {target.get('path') or '/'} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{h['name']}: {h['value']}" for h in target.get("httpHeaders") or []]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
    words = (await reader.readline()).split()
    with suppress(IndexError, ValueError):
        code = int(words[1])
        return None if 200 <= code < 400 else f"HTTP probe failed with statuscode: {code}"
    return "malformed HTTP response"


def _port(spec: Object, port: int | str) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    return next(int(p["containerPort"]) for p in spec.get("ports") or [] if p.get("name") == port)
