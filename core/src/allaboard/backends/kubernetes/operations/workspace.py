"""The values that the operations of one backend share, for all its runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from allaboard.backends.base import Plan
from allaboard.backends.data import Choice, choose_data, read_data
from allaboard.backends.kubernetes.client.process import PROCESS
from allaboard.backends.kubernetes.discovery import definitions, installed
from allaboard.backends.kubernetes.lifecycle.launch import ChooseData, unknown_data
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt, prepare_attempt
from allaboard.backends.kubernetes.logs.cache import LogCache
from allaboard.backends.kubernetes.logs.collector import PROGRESS_EVERY
from allaboard.backends.kubernetes.session import FollowSessions
from allaboard.errors import BadInput
from allaboard.follow.run_record import RunRecord, begun_with
from allaboard.job.site import Site, place_on_cluster, site_of
from allaboard.render.cluster_facts import ClusterFacts, assumed_facts
from allaboard.render.compatibility import possible_engines, priority_of
from allaboard.runs.observation import State

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

NODES_STAND = 60.0
"""Seconds for which what was read of the nodes is good."""


class Workspace:
    """The namespace, the caller's environment, what is known of the cluster, and the sessions of the runs.

    ``facts``: what is known of the cluster; without them the environment says some, and the cluster is asked
    for the rest at the first launch.
    """

    def __init__(
        self,
        namespace: str,
        site: Site | None = None,
        facts: ClusterFacts | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.namespace = namespace
        self.environ = dict(os.environ) if environ is None else environ
        self.site = site or site_of(self.environ)
        self.sessions = FollowSessions(PROGRESS_EVERY, PROCESS.get(LogCache, None, LogCache))
        self.has_pruned = False
        self._facts = facts or assumed_facts(self.environ, namespace)
        self._is_given = facts is not None
        self._nodes: tuple[float | None, tuple[installed.Node, ...] | None] = (None, None)

    def prepare(self, api: Api, plan: Plan, generation: int, attempt: int) -> PreparedAttempt:
        """The objects of an attempt, for this cluster."""
        facts = self._facts if self._is_given else self._ask(api, plan)
        return prepare_attempt(plan, generation, attempt, self.site, facts, self.environ)

    def choose_data(self, plan: Plan) -> ChooseData:
        """The function that chooses the version of the data set on which this plan's run trains. A data set
        that only the members can see is unknown.
        """
        uri = self._data_uri(plan)
        if uri is None:
            return unknown_data
        data = read_data(uri, plan.run, self.environ)

        def choose(record: RunRecord | None, state: State) -> Choice:
            begun = begun_with(record, state)
            return choose_data(uri, data, begun, plan.run, self.environ)

        return choose

    def _data_uri(self, plan: Plan) -> str | None:
        if "shards" not in (plan.job.get("data") or {}):
            return None
        with suppress(BadInput):  # raised again where the attempt is prepared
            return plan.shards or str(place_on_cluster(plan.job, self.site).get("data")["shards"])
        return None

    def _ask(self, api: Api, plan: Plan) -> ClusterFacts:
        """The facts of this cluster, as far as the job needs them; nothing is asked twice."""
        if self._facts.kinds is None:
            self._facts = installed.complete_facts(api, self._facts)
        engines = possible_engines(plan.job, self._facts)
        self._facts = definitions.complete_lacking(api, self._facts, engines)
        self._facts = installed.complete_priorities(api, self._facts, priority_of(plan.job))
        return self._facts

    def nodes(self, api: Api, now: float) -> tuple[installed.Node, ...] | None:
        """The nodes of the cluster, of some time ago at most; None when they may not be read."""
        at, nodes = self._nodes
        if at is None or now - at >= NODES_STAND:
            nodes = installed.nodes(api)
            self._nodes = (now, nodes)
        return nodes
