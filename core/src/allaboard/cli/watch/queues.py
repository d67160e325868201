"""``allaboard queues``: what queues there are, what is used and free, and who waits."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import click

from allaboard.cli.place import Place, json_option, place_options
from allaboard.report.terminal import say, show_json, style
from allaboard.text.units import counted, show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.runs.queues import Amount, Queue, Waiter

EPILOG = """\b
Examples:
  allaboard queues
  allaboard queues -n research
  allaboard queues -n research --json

On a cluster: the LocalQueues of Kueue, the Queues of Volcano, and the quotas of the namespace. Here: the
slots of this machine.
"""
_SHOWN = 20
"""Number of jobs of a queue that are shown waiting."""
_WIDTH = 24
_TITLES = {"LocalQueue": "Kueue", "Queue": "Volcano", "ResourceQuota": "quota", "machine": "this machine"}


@click.command(epilog=EPILOG)
@place_options
@json_option
def queues(at: Place, as_json: bool) -> None:
    """Show the queues of this machine or of a cluster's namespace, and the runs that wait in them."""
    notes: list[str] = []
    if at.is_cluster:
        backend = cast("KubernetesBackend", at.open())
        listed, notes = backend.queues()
        where = backend.where
    else:
        from allaboard.backends.local.queues import NOTE, read_queue

        listed, where = [read_queue(os.environ)], "on this machine"
        notes = [NOTE]
    if as_json:
        show_json({"queues": [queue.to_dict() for queue in listed], "notes": notes})
        return
    now = time.time()
    for number, queue in enumerate(listed):
        if number:
            say()
        for line in _lines(queue, now):
            say(line)
    if not listed:
        say(f"no queue and no quota {where}: jobs start as soon as nodes have room for them")
    for note in notes:
        say(note, to_stderr=True)


def _lines(queue: Queue, now: float) -> Iterator[str]:
    parts = [_TITLES[queue.kind]]
    if queue.parent:
        parts.append(f"of {'ClusterQueue' if queue.kind == 'LocalQueue' else 'queue'} {queue.parent}")
    if queue.cohort:
        parts.append(f"cohort {queue.cohort}")
    head = f"{queue.name}  ({', '.join(parts)})" if queue.kind != "machine" else "this machine"
    yield style(head, bold=True) + (f"  {style(f'closed: {queue.closed}', 'red')}" if queue.closed else "")
    names = [f"{a.resource}{f' ({a.flavor})' if a.flavor else ''}" for a in queue.amounts]
    width = max(map(len, names), default=0) + 2
    for name, amount in zip(names, queue.amounts, strict=True):
        yield f"  {name:<{width}}{_bar(amount)}{_amount(amount)}"
    if queue.running is not None or queue.waiting is not None:
        yield f"  {counted(queue.running or 0, 'job')} running, {queue.waiting or 0} waiting"
    for waiter in queue.waiters[:_SHOWN]:
        yield f"  {_waiter(waiter, now)}"
    hidden = len(queue.waiters) - _SHOWN
    if hidden > 0:
        yield f"  and {hidden} more wait here"
    elsewhere = (queue.waiting or 0) - len(queue.waiters)
    if elsewhere > 0 and queue.kind == "Queue":
        yield f"  {elsewhere} of them in other namespaces"


def _bar(amount: Amount) -> str:
    """Bar of the used share; empty without a limit."""
    if not amount.quota:
        return ""
    share = min(1.0, amount.used / amount.quota)
    full = round(share * _WIDTH)
    colour = "red" if share >= 1 else "yellow" if share >= 0.8 else "green"
    return f"{style('█' * full, colour)}{style('░' * (_WIDTH - full), dim=True)}  "


def _amount(amount: Amount) -> str:
    used = f"{amount.show(amount.used)} used"
    if amount.quota is None or amount.free is None:
        return used
    over = amount.used - amount.quota
    left = f"{amount.show(over)} borrowed" if over > 0 else f"{amount.show(amount.free)} free"
    return f"{amount.show(amount.used)} of {amount.show(amount.quota)} used, {left}"


def _waiter(waiter: Waiter, now: float) -> str:
    place = f" ({waiter.position})" if waiter.position is not None else ""
    since = f" for {show_seconds(max(0.0, now - waiter.since))}" if waiter.since is not None else ""
    more = f", boost {waiter.boost:+}" if waiter.boost else ""
    rank = f", priority {waiter.priority or 0}{more}" if waiter.priority or more else ""
    user = f" ({waiter.user})" if waiter.user is not None else ""
    return f"waits{place}  {waiter.name}{user}{since}{rank}" + (f": {waiter.why}" if waiter.why else "")
