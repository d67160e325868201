"""The contenders of `monitoring`, each a process of its own: follows jobs until they end, and says when it
saw that.

    python -m tests.bench.monitors WAY KUBECONFIG NAMESPACE NAMES_FILE

Says ``ready`` when it follows all; from the line ``go`` on its costs count; at the line ``stop`` it prints
them, as JSON: CPU seconds, resident bytes before and after it began to follow, and the moment
(CLOCK_MONOTONIC, which all processes share) at which it knew that a job had ended.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import resource
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

FINAL = ("Succeeded", "Failed")
AIRFLOW_POLL = 10.0
"""Seconds; the default of KubernetesJobTrigger."""
KUBEFLOW_POLL = 15.0
"""Seconds; the default of TrainingClient.wait_for_job_conditions."""


def state_of(job: dict[str, Any]) -> str:
    conditions = (job.get("status") or {}).get("conditions") or [{"type": ""}]
    return str(conditions[-1]["type"])


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Story:
    """What a contender tells about itself."""

    def __init__(self, kubeconfig: str, namespace: str, names: list[str]) -> None:
        self.kubeconfig, self.namespace, self.names = kubeconfig, namespace, names
        self.ends: dict[str, float] = {}
        self.seen = 0
        self.before = self.following = 0
        self.cpu = 0.0
        self.all_seen = threading.Event()

    def warm(self) -> None:
        """All is imported, and a first request was made: what comes is the price of following."""
        gc.collect()
        self.before = resident()

    def looked(self) -> None:
        """One more job was looked at for the first time."""
        self.seen += 1
        if self.seen == len(self.names):
            self.all_seen.set()

    def ended(self, name: str) -> None:
        self.ends.setdefault(name, time.monotonic())

    def converse(self) -> None:
        """With whoever measures; returns when it is to end."""
        self.all_seen.wait()
        time.sleep(1.0)
        gc.collect()
        self.following = resident()
        print("ready", flush=True)
        assert sys.stdin.readline() == "go\n"
        self.cpu = cpu()
        assert sys.stdin.readline() == "stop\n"
        self.cpu = cpu() - self.cpu
        found = {
            "cpu": self.cpu,
            "before": self.before,
            "following": self.following,
            "ends": self.ends,
        }
        print(json.dumps(found), flush=True)
        os._exit(0)  # threads that poll have no end of their own


def allaboard(story: Story, followers: int = 1) -> None:
    """The hub: rows wake, and state comes from one GET."""
    from allaboard.backends.kubernetes.client.loader import Access
    from allaboard.backends.kubernetes.client.pool import ThreadPool
    from allaboard.backends.kubernetes.client.protocol import Patience
    from allaboard.backends.kubernetes.watch.informer import async_hub_of
    from allaboard.testing.objects import PYTORCHJOBS

    async def follow(hub: Any, ask: Any, name: str) -> None:
        async with hub.changes(name, PYTORCHJOBS) as changes:
            story.looked()
            while True:
                await changes.wait(600)
                if state_of(await ask(name)) in FINAL:
                    story.ended(name)
                    return

    async def main() -> None:
        access = Access(story.kubeconfig, namespace=story.namespace, environ={})
        pool = ThreadPool("bench", 16)
        with access.api() as api:

            async def ask(name: str) -> Any:
                return await pool.run(60, partial(api.get, PYTORCHJOBS, name))

            async with api.in_loop(Patience()) as warm:
                # Warm: parser, TLS, and a list as large as the hub's first.
                await warm.list(PYTORCHJOBS, table=True)
            story.warm()
            hub = async_hub_of(api)
            await asyncio.gather(*(follow(hub, ask, name) for name in story.names))
            await asyncio.sleep(3600)

    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()


def airflow(story: Story) -> None:
    """KubernetesJobTrigger's way, by Airflow's own hook: every job is asked for every 10 s, each time by a
    new ApiClient.
    """
    import yaml
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    from kubernetes_asyncio import client

    async def follow(hook: Any, name: str, first: float) -> None:
        await asyncio.sleep(first)
        while True:
            async with hook.get_conn() as connection:
                job = await client.CustomObjectsApi(connection).get_namespaced_custom_object(
                    "kubeflow.org", "v1", story.namespace, "pytorchjobs", name
                )
            if name not in looked:
                looked.add(name)
                story.looked()
            if state_of(job) in FINAL:
                story.ended(name)
                return
            await asyncio.sleep(AIRFLOW_POLL)

    looked: set[str] = set()

    async def main() -> None:
        config = yaml.safe_load(Path(story.kubeconfig).read_text())
        hooks = [
            AsyncKubernetesHook(conn_id=None, config_dict=config, connection_extras={}) for _ in story.names
        ]
        async with hooks[0].get_conn() as connection:
            await client.CoreV1Api(connection).list_namespaced_config_map(story.namespace, limit=1)
        story.warm()
        count = len(story.names)
        await asyncio.gather(
            *(
                follow(hook, name, AIRFLOW_POLL * n / count)
                for n, (hook, name) in enumerate(zip(hooks, story.names, strict=True))
            )
        )
        await asyncio.sleep(3600)

    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()


def kubeflow(story: Story) -> None:
    """TrainingClient.get_job for every job every 15 s, as wait_for_job_conditions does it; by 16 threads, for
    one for each job is more than it could bear.
    """
    from kubeflow.training import TrainingClient

    client = TrainingClient(config_file=story.kubeconfig, namespace=story.namespace)
    # Its models do not know the types of `kubernetes` 36, and get_job fails in them. Without, it is faster.
    client.api_client.deserialize = lambda response, model: json.loads(response.data)
    story.warm()
    threads = 16

    def poll(names: list[str]) -> None:
        open_ = set(names)
        first = True
        while open_:
            began = time.monotonic()
            for name in list(open_):
                job = client.get_job(name)
                if first:
                    story.looked()
                if state_of(job) in FINAL:
                    story.ended(name)
                    open_.discard(name)
            first = False
            time.sleep(max(0.0, KUBEFLOW_POLL - (time.monotonic() - began)))

    for n in range(threads):
        threading.Thread(target=poll, args=(story.names[n::threads],), daemon=True).start()


def watches(story: Story) -> None:
    """`kubernetes`: a Watch for each job, in a thread of its own."""
    from kubernetes import client, config, watch

    configuration = client.Configuration()
    configuration.connection_pool_maxsize = len(story.names)
    config.load_kube_config(story.kubeconfig, client_configuration=configuration)
    api = client.CustomObjectsApi(client.ApiClient(configuration))
    api.list_namespaced_custom_object("kubeflow.org", "v1", story.namespace, "pytorchjobs", limit=1)
    story.warm()

    def follow(name: str) -> None:
        first = True
        while True:
            try:
                for event in watch.Watch().stream(
                    api.list_namespaced_custom_object,
                    "kubeflow.org",
                    "v1",
                    story.namespace,
                    "pytorchjobs",
                    field_selector=f"metadata.name={name}",
                    timeout_seconds=300,
                ):
                    if first:
                        story.looked()
                        first = False
                    if state_of(event["object"]) in FINAL:
                        story.ended(name)
                        return
            except Exception:
                time.sleep(1.0)

    threading.stack_size(256 * 1024)
    for name in story.names:
        threading.Thread(target=follow, args=(name,), daemon=True).start()


def runs(story: Story, progress_every: float = 0.0) -> None:
    """The whole follower, as a trigger has it: a backend for each run, over one client and one hub."""
    from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend
    from allaboard.backends.kubernetes.client.loader import Access
    from allaboard.backends.kubernetes.client.protocol import Patience
    from allaboard.follow.loop import FollowPolicy, Observe, Wait, follow, run_async

    async def lead(api: Any, run: str) -> None:
        backend = AsyncKubernetesBackend(api, environ={})
        backend.workspace.sessions.progress_every = progress_every
        first = True
        async with backend.changes(run) as changes:

            async def answer(ask: Any) -> Any:
                nonlocal first
                if isinstance(ask, Wait):
                    await changes.wait(ask.seconds * (0.9 + 0.2 * random.random()))
                    return None
                assert isinstance(ask, Observe)
                if ask.evidence:  # it is over, and known to be
                    story.ended(run)
                seen = await backend.observe(run, ask.evidence)
                if first:
                    story.looked()
                    first = False
                return seen

            await run_async(follow(FollowPolicy(poll=60, attempts=1)), answer)

    async def main() -> None:
        access = Access(story.kubeconfig, namespace=story.namespace, environ={})
        with access.api() as api:
            async with api.in_loop(Patience()) as warm:
                await warm.list(PYTORCHJOBS, table=True)
            story.warm()
            await asyncio.gather(*(lead(api, run) for run in story.names))
            await asyncio.sleep(3600)

    from allaboard.testing.objects import PYTORCHJOBS

    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()


def progress(story: Story) -> None:
    """The same, with what rank 0 reports once a minute."""
    runs(story, progress_every=60.0)


WAYS = {
    "allaboard": allaboard,
    "airflow": airflow,
    "kubeflow": kubeflow,
    "watches": watches,
    "runs": runs,
    "progress": progress,
    "listening": progress,
}


def main() -> None:
    way, kubeconfig, namespace, names = sys.argv[1:]
    story = Story(kubeconfig, namespace, Path(names).read_text().split())
    WAYS[way](story)
    story.converse()


if __name__ == "__main__":
    main()
