"""``allaboard boost``: for the platform of a cluster with Kueue. As long as it runs, whoever has just saved
is preempted first.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from allaboard.cli.place import cluster_options, json_option, resolved
from allaboard.errors import AllaboardError, BadInput, OwnershipConflict
from allaboard.report.terminal import json_line, say
from allaboard.text.units import counted, show_seconds
from allaboard.text.units import seconds as read_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api
    from allaboard.backends.kubernetes.operations.boost import Booster, Look
    from allaboard.backends.kubernetes.watch.informer import Copy, Hub

EPILOG = """\b
Examples:
  allaboard boost --all-namespaces --store s3://checkpoints
  allaboard boost -n research --store s3://checkpoints/research --dry-run
  allaboard boost -n research --clear
  allaboard cluster --rbac boost -n platform | kubectl apply -f -

Kueue must run with --feature-gates=PriorityBoost=true, and nobody else may write this annotation. A run
gets the more boost, from 0 to 6, the more GPU-seconds it has not saved; it stays below the next priority
class. A run without checkpoints below --store gets none. At its end the command removes its boosts.
"""
MOST_ENTRIES = 20_000
"""Entries of one run's folder that are looked at."""
SHORTEST_REST, LONGEST_REST = 1.0, 60.0
"""Seconds for which it leaves a cluster alone that has not answered."""
T = TypeVar("T")


class _Ended(BaseException):
    """It was asked to end."""


@click.command(epilog=EPILOG)
@click.option("--backend", type=click.Choice(["kubernetes"]), expose_value=False, help="As with other verbs.")
@cluster_options
@click.option("--all-namespaces", is_flag=True, help="Runs of all namespaces, not of one.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="URI",
    help="Where checkpoints may be listed: a folder or s3://bucket/prefix, once or more; ALLABOARD_STORE.",
)
@click.option(
    "--interval",
    default="30s",
    show_default=True,
    help="How often each run's checkpoints are listed. A boost stands for twice as long.",
)
@click.option("--once", is_flag=True, help="Update the boosts once, then exit and keep them.")
@click.option("--clear", is_flag=True, help="Remove all boosts that were written, then exit.")
@click.option("--dry-run", is_flag=True, help="Write nothing; print what would be written.")
@json_option
def boost(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    all_namespaces: bool,
    stores: tuple[str, ...],
    interval: str,
    once: bool,
    clear: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Make Kueue preempt whoever has just saved: keep the priority boosts of runs by their unsaved work."""
    from allaboard.backends.kubernetes.client.loader import Access
    from allaboard.backends.kubernetes.client.protocol import Patience
    from allaboard.backends.kubernetes.watch.informer import hub_of

    if all_namespaces and namespace:
        raise click.UsageError("--namespace and --all-namespaces exclude each other; give one of them")
    stores = stores or tuple(filter(None, [os.environ.get("ALLABOARD_STORE")]))
    if not stores and not clear:
        raise BadInput("no --store: give the place of the checkpoints of runs, such as s3://checkpoints")
    stores = tuple(map(resolved, stores))
    every = read_seconds(interval)
    if every < 1:
        raise BadInput(f"--interval {interval}: give 1s or more")
    access = Access(kubeconfig, context, namespace)
    with access.api(Patience(budget=20.0)) as api:
        of = "" if all_namespaces else api.namespace
        keeper = Keeper(api, hub_of(api), of, booster(stores, every, not dry_run), partial(_show, as_json))
        with _ending():
            try:
                keeper.start()
                act = keeper.clear if clear else keeper.once if once else keeper.keep
                act()
            except _Ended:
                pass
    return 0


def booster(stores: Sequence[str], every: float, writes: bool) -> Booster:
    from allaboard.backends.kubernetes.operations.boost import Booster
    from allaboard.checkpoints.listing import save_times
    from allaboard.storage import open_store

    def saves(uri: str) -> Sequence[float]:
        return save_times(open_store(uri), MOST_ENTRIES)

    return Booster(hold=2 * every, interval=every, stores=stores, saves=saves, writes=writes)


class Keeper:
    """Keeps the boosts of a namespace, ``""``: of all. ``show`` is given each look that has something to say,
    and the sentence that says why there is none.
    """

    def __init__(
        self,
        api: Api,
        hub: Hub,
        namespace: str,
        booster: Booster,
        show: Callable[[Look | str], None],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.api, self.hub, self.namespace, self.booster = api, hub, namespace, booster
        self.show, self.pause = show, pause
        self.holder = f"{socket.gethostname()}:{os.getpid()}"
        self._leads_until = 0.0
        self._said = ""

    def start(self) -> None:
        """Raises BadInput or SiteError where it cannot work."""
        from allaboard.backends.kubernetes.operations.boost import check

        check(self.api, self.namespace, self.api.namespace, self.booster.writes)

    def once(self) -> None:
        self._alone(self.booster.look)

    def clear(self) -> None:
        self._alone(self.booster.clear)

    def _alone(self, look: Callable[..., Look]) -> None:
        """One look. Raises OwnershipConflict where another writes."""
        if (other := self._leader()) is not None:
            raise OwnershipConflict(f"{other} writes the boosts here; end it first")
        try:
            self.show(look(self.api, self._listed(), self.api.server_time()))
        finally:
            self._let_go()

    def keep(self) -> None:
        """Until `_Ended` is raised; no trouble of the cluster ends it."""
        from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS

        rest = SHORTEST_REST
        try:
            with self.hub.copy(KUEUE_WORKLOADS, self.namespace) as copy:
                while True:
                    try:
                        self._look(copy)
                        rest = SHORTEST_REST
                    except AllaboardError as error:
                        self._say_once(f"trying again soon: {error}")
                        self.pause(rest)
                        rest = min(2 * rest, LONGEST_REST)
                    copy.wait(self.booster.interval)
        finally:
            with suppress(AllaboardError):
                if self._leader() is None:
                    self.show(self.booster.clear(self.api, self._listed(), self.api.server_time()))
            self._let_go()

    def _look(self, copy: Copy) -> None:
        if (other := self._leader()) is not None:
            self._say_once(f"waiting: {other} writes the boosts here")
            return
        if copy.trouble is not None:
            self._say_once(f"continuing with known workloads; the watch fails: {copy.trouble}")
        else:
            self._said = ""
        look = self.booster.look(self.api, copy.objects(), self.api.server_time())
        if look.changes or look.notes:
            self.show(look)

    def _leader(self) -> str | None:
        """Name of another process that writes the boosts here; None: no other does, or this is a dry run."""
        from allaboard.backends.kubernetes.operations.boost import lead
        from allaboard.backends.kubernetes.state.leases import EVERY

        now = self.api.server_time()
        if not self.booster.writes or now < self._leads_until:
            return None
        other = lead(self.api, self.holder)
        self._leads_until = now + EVERY if other is None else 0.0
        return other

    def _let_go(self) -> None:
        from allaboard.backends.kubernetes.operations.boost import yield_lead

        if self.booster.writes and self._leads_until:
            with suppress(AllaboardError):
                yield_lead(self.api, self.holder)

    def _listed(self) -> list[dict[str, Any]]:
        from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS

        return self.api.list(KUEUE_WORKLOADS, self.namespace)[0]

    def _say_once(self, message: str) -> None:
        if message != self._said:
            self._said = message
            self.show(message)


def _show(as_json: bool, look: Look | str) -> None:
    if isinstance(look, str):
        say(look, to_stderr=True)
    elif as_json:
        click.echo(json_line({"changes": [c.to_dict() for c in look.changes], "notes": [*look.notes]}))
    else:
        for line in _lines(look):
            say(line)


def _lines(look: Look) -> Iterator[str]:
    yield from look.notes
    for change in look.changes:
        unsaved = f"{show_seconds(change.unsaved)} of GPU time" if change.unsaved else ""
        about = ", ".join(filter(None, [unsaved, change.reason]))
        yield f"{change.namespace}/{change.run}: boost {change.before} -> {change.boost} ({about})"
    if not look.changes and not look.notes:
        yield f"nothing to change: {counted(look.runs, 'admitted run')} of allaboard"


@contextmanager
def _ending() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the loop once; they do not interrupt the removal of boosts afterwards."""

    def end(*_: object) -> NoReturn:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise _Ended

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
