"""The place that a command works on: this machine or a cluster, and the options that choose it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from allaboard.cli import Line
from allaboard.errors import BadInput, SiteError, UnknownRun
from allaboard.report import commands

if TYPE_CHECKING:
    from allaboard.backends.base import Backend
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.kubernetes.operations.foreign_job import OthersJob
    from allaboard.backends.local.backend import LocalBackend
    from allaboard.job.site import Site
    from allaboard.runs.observation import Observation

Verb = TypeVar("Verb", bound=Callable[..., Any])

json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout and nothing else."
)
store_option = click.option(
    "--store", metavar="URI", help="The base of store:// uris: a folder or s3://bucket/prefix."
)


def site_options(verb: Verb) -> Verb:
    """``--store``, ``--mount`` and ``--fit``: what this machine gives to a job."""
    for option in (
        click.option(
            "--fit", type=click.Choice(["shrink", "strict"]), help="A gang too large: shrink it, or refuse."
        ),
        click.option(
            "--mount",
            "mounts",
            multiple=True,
            metavar="/data=./data",
            help="The folder here behind a mount of the job.",
        ),
        store_option,
    ):
        verb = option(verb)
    return verb


def cluster_options(verb: Verb) -> Verb:
    """``--kubeconfig``, ``--context`` and ``--namespace``: which cluster, as whom, where in it."""
    for option in (
        click.option(
            "-n", "--namespace", metavar="N", help="The namespace; ALLABOARD_NAMESPACE, or the context's."
        ),
        click.option("--context", metavar="C", help="The context of the kubeconfig; ALLABOARD_CONTEXT."),
        click.option(
            "--kubeconfig",
            metavar="F",
            help="The kubeconfig; ALLABOARD_KUBECONFIG, KUBECONFIG, ~/.kube/config.",
        ),
    ):
        verb = option(verb)
    return verb


backend_option = click.option(
    "--backend",
    type=click.Choice(["local", "kubernetes"]),
    help="This machine, or a cluster; ALLABOARD_BACKEND, or this machine.",
)


adopt_option = click.option(
    "--adopt",
    is_flag=True,
    help="On a cluster: also a job that allaboard did not start (list --all).",
)


def is_cluster(backend: str | None, *options: str | None) -> bool:
    """Return whether the options choose a cluster, by name or by an option that only clusters have. Raises
    BadInput for an unknown ALLABOARD_BACKEND.
    """
    return (backend or _backend_of_environment() or ("kubernetes" if any(options) else "")) == "kubernetes"


def _backend_of_environment() -> str:
    """The value of ALLABOARD_BACKEND. Raises BadInput for an unknown one, which would otherwise mean another
    place.
    """
    from allaboard.job.site import check_backend

    name = os.environ.get("ALLABOARD_BACKEND", "")
    if name:
        check_backend(name)
    return name


@dataclass(frozen=True, slots=True)
class Place(commands.Place):
    """Place of the runs of a verb, by the options."""

    @property
    def is_cluster(self) -> bool:
        return is_cluster(self.backend, self.kubeconfig, self.context, self.namespace)

    def check(self) -> None:
        """Raises BadInput when options of a cluster are combined with the local backend."""
        options = [f"--{n}" for n in ("kubeconfig", "context", "namespace") if getattr(self, n)]
        if options and not self.is_cluster:
            who = "--backend" if self.backend else "ALLABOARD_BACKEND"
            verb = "name" if len(options) > 1 else "names"
            raise BadInput(
                f"{' and '.join(options)} {verb} a cluster, and {who} says local; leave out one of them"
            )

    def open(self, at: Site | None = None) -> Backend:
        """The backend. Raises BadInput."""
        from allaboard.running import backend_of

        self.check()
        name = "kubernetes" if self.is_cluster else self.backend
        backend = backend_of(
            name, site=at, kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace
        )
        if backend.name == "kubernetes":
            cast("KubernetesBackend", backend).api.on_silence = _say_on_stderr
        else:
            cast("LocalBackend", backend).on_silence = _say_on_stderr
        return backend

    def open_to_watch(self, run: str, evidence: bool = False) -> tuple[Backend, Observation]:
        """The backend and the observation for a verb that only reads: a run of allaboard, else a foreign job
        on the cluster. If both have the name, the run is chosen and a note says so.
        """
        return _hiding_secrets(*self._open_to_watch(run, evidence))

    def _open_to_watch(self, run: str, evidence: bool) -> tuple[Backend, Observation]:
        backend = self.open()
        if not self.is_cluster:
            return backend, backend.observe(run, evidence)
        on = cast("KubernetesBackend", backend)
        if "/" in run:
            others = on.others(run)
            return others, others.observe(run, evidence)
        try:
            seen = backend.observe(run, evidence)
        except UnknownRun:
            if (foreign := _foreign_job(on, run)) is None:
                raise
            return foreign, foreign.observe(run, evidence)
        if seen.run != run and (foreign := _foreign_job(on, run)) is not None:
            kind = foreign.engine.KIND
            _say_on_stderr(f"{seen.run} is meant; for the {kind} {run} of others: {kind.lower()}/{run}")
        return backend, seen

    def open_to_change(self, run: str, verb: str, adopt: bool = False) -> tuple[Backend, Observation]:
        """The backend and the observation for a verb that changes something: a run of allaboard, or with
        ``adopt`` also a foreign job. A name that both have means the run; with ``adopt`` it is refused.
        Raises BadInput.
        """
        return _hiding_secrets(*self._open_to_change(run, verb, adopt))

    def _open_to_change(self, run: str, verb: str, adopt: bool) -> tuple[Backend, Observation]:
        if not self.is_cluster:
            if adopt:
                raise BadInput(
                    "--adopt is for jobs that others started on a cluster, and this machine has none; "
                    "leave it out, or name the cluster: --backend kubernetes"
                )
            backend = self.open()
            return backend, backend.observe(run)
        on = cast("KubernetesBackend", self.open())
        try:
            seen = on.observe(run)
        except UnknownRun:
            foreign = on.others(run, adopt=adopt) if "/" in run else _foreign_job(on, run, adopt)
            if foreign is None:
                raise
            if not adopt:
                foreign.refuse(verb)
            foreign_seen = foreign.observe(run)
            for note in foreign_seen.notes:
                _say_on_stderr(f"{foreign_seen.run}: {note}")
            return foreign, foreign_seen
        if adopt and seen.run != run and (foreign := _foreign_job(on, run)) is not None:
            kind = foreign.engine.KIND
            raise BadInput(
                f"{run} is a job of ours and a {kind} of others; say which to {verb}: the run {seen.run}, "
                f"or {kind.lower()}/{run}"
            )
        return on, seen


def _hiding_secrets(backend: Backend, seen: Observation) -> tuple[Backend, Observation]:
    """Both, for a verb that tells of this run: what it prints shows none of the run's secrets."""
    from allaboard.report.terminal import hide

    hide(backend.secrets_of(seen.run))
    return backend, seen


def _foreign_job(backend: KubernetesBackend, name: str, adopt: bool = False) -> OthersJob | None:
    try:
        return backend.others(name, adopt=adopt)
    except UnknownRun:
        return None


def _say_on_stderr(line: str) -> None:
    from allaboard.report.terminal import say

    say(line, to_stderr=True)


def place_options(verb: Verb) -> Verb:
    """``--backend`` and the options of a cluster, handed to the verb as ``at``, a `Place`."""

    @wraps(verb)
    def placed(
        *args: Any,
        backend: str | None,
        kubeconfig: str | None,
        context: str | None,
        namespace: str | None,
        **rest: Any,
    ) -> Any:
        from allaboard.report.terminal import forget_hidden

        at = Place(backend, kubeconfig, context, namespace)
        forget_hidden()
        click.get_current_context().ensure_object(Line).at = at
        at.check()
        return verb(*args, at=at, **rest)

    return cast(Verb, backend_option(cluster_options(placed)))


def site(store: str | None = None, mounts: Sequence[str] = (), fit: str | None = None) -> Site:
    """The site: options override the environment."""
    from allaboard.job.site import parse_mounts, site_of

    given = parse_mounts(mounts) if mounts else {}
    base = site_of(os.environ, store=store, fit=fit)
    return site_of(os.environ, store=store, mounts={**base.mounts, **given}, fit=fit)


def local(at: Site | None = None) -> LocalBackend:
    """The backend of this machine."""
    if sys.platform == "win32":
        raise SiteError("runs on this machine need Linux or macOS; on Windows use WSL, or a cluster")
    from allaboard.backends.local.backend import LocalBackend

    return LocalBackend(site=at)


def resolved(uri: str, store: str | None = None) -> str:
    """The absolute form of a uri that a person typed: ``store://x`` is below the store, a relative path below
    the working directory.
    """
    from allaboard.job.site import resolve_uri

    return resolve_uri(uri, site(store), str(Path.cwd()))


def is_place(text: str) -> bool:
    """Return whether this names a place (a uri, a path) rather than a run."""
    return "://" in text or "/" in text or text in (".", "..") or text.startswith("~") or Path(text).exists()
