"""Obstacles that keep a job from starting, looked for while it is being sent: the checks of `preflight` that
take one request each. They run beside the launch, which waits for them no longer than `PATIENCE`. A question
without an answer by then is dropped; its trouble shows within seconds in `status`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.client.errors import Missing
from allaboard.backends.kubernetes.client.resources import (
    CONFIGMAPS,
    LIMITRANGES,
    NAMESPACES,
    NODES,
    PRIORITYCLASSES,
    PVCS,
    RESOURCEQUOTAS,
    SECRETS,
    SERVICEACCOUNTS,
    STORAGECLASSES,
    Resource,
    resource_of,
)
from allaboard.backends.kubernetes.discovery import capacity
from allaboard.backends.kubernetes.discovery.installed import Node, Survey, node_of
from allaboard.backends.kubernetes.discovery.pod_specs import PodSpec
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt
from allaboard.backends.kubernetes.lifecycle.reaper import is_at_work
from allaboard.backends.kubernetes.preflight import checks
from allaboard.backends.kubernetes.preflight.checks import Facts
from allaboard.backends.kubernetes.preflight.lookup import Lookup
from allaboard.errors import AllaboardError
from allaboard.runs.observation import Owner

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

PATIENCE = 0.2
"""Seconds that a launch that is done waits for the answers."""
AT_A_TIME = 8
NODES_LOOKED_AT = 200
"""Of more nodes nothing is concluded: the list would be larger than the question is worth."""
ASKED = (checks.volumes, checks.secrets, checks.nodes, checks.quota, checks.pod_security)


class Asking:
    """The questions of one launch. ``requests``: how many were sent."""

    def __init__(self, api: Api) -> None:
        self.api, self.requests = api, 0
        self._answers: dict[tuple[str, str], Any] = {}
        self._threads: list[threading.Thread] = []
        self._ready: PreparedAttempt | None = None
        self._turn = threading.Semaphore(AT_A_TIME)

    def begin(self, ready: PreparedAttempt) -> None:
        """Ask about the objects that are about to be made."""
        if self._ready is not None:
            return  # it is prepared again because another launch was faster; the questions are the same
        self._ready = ready
        for key, question in _questions(ready, self.api).items():
            thread = threading.Thread(target=self._ask, args=(key, question), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no room for another thread
                return
            self.requests += 1
            self._threads.append(thread)

    def _ask(self, key: tuple[str, str], question: Callable[[], Any]) -> None:
        with self._turn:
            try:
                self._answers[key] = question()
            except Missing as error:
                self._answers[key] = None if error.unserved else Lookup()
            except AllaboardError:  # not permitted, or no answer: it stays unknown
                return

    def notes(self) -> tuple[str, ...]:
        """The obstacles, each as a sentence with what to do."""
        end = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return () if self._ready is None else tuple(_sentences(self._facts(self._ready)))

    def _facts(self, ready: PreparedAttempt) -> Facts:
        answers = dict(self._answers)

        def each(resource: Resource, names: Any) -> dict[str, Lookup]:
            asked = {name: answers.get((resource.plural, name)) for name in names}
            return {
                name: answer if isinstance(answer, Lookup) else Lookup(known=False)
                for name, answer in asked.items()
            }

        pods = capacity.pods_of(ready.manifests)
        limits = answers.get((LIMITRANGES.plural, ""))
        space = answers.get((NAMESPACES.plural, self.api.namespace))
        survey = Survey(self.api.server, "", self.api.namespace, frozenset(), nodes=_nodes(answers))
        return Facts(
            survey=survey,
            manifests=ready.manifests,
            resources=[resource_of(manifest) for manifest in ready.manifests],
            gang=ready.gang,
            namespace=space if isinstance(space, Lookup) else Lookup(known=False),
            # Without the defaults that LimitRanges give nothing is known of what a pod must state.
            quotas=answers.get((RESOURCEQUOTAS.plural, "")) if limits is not None else None,
            limits=limits,
            claims=each(PVCS, capacity.claims(pods)),
            own_claims=ready.claims,
            storage_classes=answers.get((STORAGECLASSES.plural, "")),
            secrets=each(SECRETS, capacity.secrets(pods, ready.secrets)),
            config_maps=each(CONFIGMAPS, capacity.config_maps(pods, _own(ready))),
            accounts=each(SERVICEACCOUNTS, capacity.accounts(pods) - {"default"}),
            priorities=each(PRIORITYCLASSES, capacity.priorities(pods)),
        )


def orphan_note(api: Api, plan: Plan, owner: Owner) -> tuple[str, ...]:
    """The sentence of a run that a task or a step follows where nobody would end it without them; one
    request.
    """
    policy = (plan.job.get("policy") or {}).get("orphan") or {}
    if owner.kind != "orchestrated" or policy.get("then") == "finish":
        return ()
    check = checks.reaper(is_at_work(api), api.namespace)
    return () if check.ok else (f"{check.summary}; {check.fix}",)


def _own(ready: PreparedAttempt) -> list[str]:
    return [m["metadata"]["name"] for m in ready.manifests if m["kind"] == "ConfigMap"]


def _questions(ready: PreparedAttempt, api: Api) -> dict[tuple[str, str], Callable[[], Any]]:
    pods = capacity.pods_of(ready.manifests)
    named = (
        (PVCS, capacity.claims(pods)),
        (SECRETS, capacity.secrets(pods, ready.secrets)),
        (CONFIGMAPS, capacity.config_maps(pods, _own(ready))),
        (SERVICEACCOUNTS, capacity.accounts(pods) - {"default"}),
        (PRIORITYCLASSES, capacity.priorities(pods)),
        (NAMESPACES, [api.namespace]),
    )
    questions: dict[tuple[str, str], Callable[[], Any]] = {
        (resource.plural, name): partial(_get, api, resource, name)
        for resource, names in named
        for name in sorted(names)
    }
    lists = [RESOURCEQUOTAS, LIMITRANGES]
    lists += [STORAGECLASSES] if ready.claims or any(group.pod.ephemeral for group in pods) else []
    lists += [NODES] if any(_is_particular(group.pod) for group in pods) else []
    return questions | {(resource.plural, ""): partial(_list, api, resource) for resource in lists}


def _is_particular(pod: PodSpec) -> bool:
    """True if some nodes will not do. The little that the operator's own container asks for is not meant."""
    asks = any(container.requests for container in pod.containers)
    return asks or bool(pod.node_selector) or pod.has_affinity


def _get(api: Api, resource: Resource, name: str) -> Lookup:
    return Lookup(api.get(resource, name))


def _list(api: Api, resource: Resource) -> list[Any]:
    items, _ = api.list(resource, limit=NODES_LOOKED_AT, at_most=NODES_LOOKED_AT)
    return list(items)


def _nodes(answers: Mapping[tuple[str, str], Any]) -> tuple[Node, ...] | None:
    items = answers.get((NODES.plural, ""))
    if not isinstance(items, list) or not items or len(items) >= NODES_LOOKED_AT:
        return None
    return tuple(node_of(item) for item in items)


def _sentences(facts: Facts) -> Iterator[str]:
    for ask in ASKED:
        for check in ask(facts):
            # What is left of a quota is a moment's, and its own pods may be counted already.
            if check.ok is not False or (check.id == "quota" and not check.stops):
                continue
            word = "it will not start" if check.stops else "warning"
            yield f"{word}: {check.summary}" + (f"; {check.fix}" if check.fix else "")
