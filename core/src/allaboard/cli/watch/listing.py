"""``allaboard list``: the runs of this machine or a cluster, newest first. On this machine it also shows who
holds slots and who waits for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from allaboard.cli.orphans import list_orphans
from allaboard.cli.place import Place, json_option, place_options
from allaboard.diagnosis import Diagnosis, diagnose
from allaboard.errors import BadInput, SiteError, UnknownRun
from allaboard.report import localtime
from allaboard.report.phrases import COLOURS, duration, members_phrase, step_phrase, table
from allaboard.report.terminal import hide, say, show_json, style
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of, summary
from allaboard.text.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from allaboard.backends.base import Backend
    from allaboard.backends.kubernetes.backend import KubernetesBackend

EPILOG = """\b
Examples:
  allaboard list
  allaboard list -n research
  allaboard list -A --wide                 of all namespaces, and why they wait
  allaboard list --all -n research         with the jobs that others made
  allaboard list --orphans -n research     what dead clients have left behind
"""
_SHOWN = 10
"""Number of waiting runs that are shown."""
_WIDE = ("attempt", "key", "why")
_HEAD = ("run", "state", "created", "took", "members", "restarts", "progress", "followed by")


@click.command(name="list", epilog=EPILOG)
@click.option("--orphans", is_flag=True, help="List runs and objects on a cluster whose clients died.")
@click.option("--all", "everything", is_flag=True, help="On a cluster: also list the jobs of others.")
@click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="On a cluster: list runs of all namespaces."
)
@click.option("--wide", is_flag=True, help="More columns: the attempt, the key, and why a run waits.")
@place_options
@json_option
def list_runs(
    orphans: bool, everything: bool, everywhere: bool, wide: bool, at: Place, as_json: bool
) -> None:
    """Show the runs of this machine or of a cluster's namespace, newest first."""
    if everywhere and not at.is_cluster:
        raise BadInput("-A lists the namespaces of a cluster; leave it out, or add --backend kubernetes")
    if everywhere and at.namespace is not None:
        raise BadInput("-A means all namespaces, and -n one; leave out one of them")
    if orphans:
        return list_orphans(at, as_json)
    backend = at.open()
    spaces = [""]
    if everywhere:
        spaces = cast("KubernetesBackend", backend).namespaces()
    listed = [
        (space, seen)
        for space in spaces
        for seen in _runs_of(replace(at, namespace=space).open() if space else backend, everything)
    ]
    listed.sort(key=lambda pair: pair[1].created or 0, reverse=True)
    runs = [seen for _, seen in listed]
    if as_json:
        hide(value for seen in runs for value in _secrets_of(backend, seen))
        bodies = [
            {**({"namespace": space} if space else {}), **summary(seen, _damage_diagnoses(seen))}
            for space, seen in listed
        ]
        show_json({"runs": bodies})
        return
    now = time.time()
    readable = [(space, seen) for space, seen in listed if not _unreadable(seen)]
    whole = [seen for _, seen in readable]
    if whole:
        titles = (*(("namespace",) if everywhere else ()), *_HEAD, *(_WIDE if wide else ()))
        rows = (
            (*((space,) if everywhere else ()), *_row(seen, now), *(_more(seen) if wide else ()))
            for space, seen in readable
        )
        head, *lines = table(titles, rows)
        say(style(head, dim=True))
        for seen, line in zip(whole, lines, strict=True):
            state = str(state_of(seen))
            say(line.replace(state, style(state, COLOURS[state_of(seen)]), 1))
    for seen in filter(_unreadable, runs):
        say(seen.notes[0], to_stderr=True)
    if not runs:
        say(f"no runs {backend.where} yet; start one: {at.command('run', 'job.yaml')}")
    for line in () if at.is_cluster else _slot_lines(now):
        say(line)


def _runs_of(backend: Backend, everything: bool) -> list[Observation]:
    if not everything or backend.name == "local":
        return backend.list()
    return [*backend.list(), *cast("KubernetesBackend", backend).list_others()]


def _more(seen: Observation) -> tuple[str, ...]:
    """The columns of ``--wide``."""
    key = "-" if not seen.key or seen.key.startswith("once/") else seen.key
    return str(seen.attempt), key, seen.held_by or "-"


def _secrets_of(backend: Backend, seen: Observation) -> tuple[str, ...]:
    """The names of metrics are a member's. On a cluster each run would cost a request."""
    with suppress(UnknownRun, SiteError):  # deleted meanwhile, or damaged
        return backend.secrets_of(seen.run) if backend.name == "local" else ()
    return ()


def _unreadable(seen: Observation) -> bool:
    """Return whether its files are damaged, or written by a newer allaboard; a note says which."""
    return bool({"run_damaged", "run_newer"} & {*seen.flags})


def _damage_diagnoses(seen: Observation) -> tuple[Diagnosis, ...]:
    """The diagnoses of a run whose files cannot be read; empty for other runs."""
    return diagnose(seen) if _unreadable(seen) else ()


def _row(seen: Observation, now: float) -> tuple[str, ...]:
    owner = seen.owner
    final = state_of(seen).is_final
    who = "-" if owner is None or final else "none (detached)" if owner.kind == "detached" else owner.id
    return (
        seen.run,
        str(state_of(seen)) + (" (deleted)" if seen.deleted else ""),
        localtime.moment(seen.created, now),
        "-" if seen.started is None else show_seconds(duration(seen, now)),
        members_phrase(seen.members) or "-",
        str(seen.restarts),
        step_phrase(seen.progress.step, seen.progress.total).removeprefix("step ") or "-",
        who if seen.key else "(a job of others)",
    )


def _slot_lines(now: float) -> Iterator[str]:
    """One line for the holders of slots and one for each waiting run; empty while no run states resources."""
    from allaboard.backends.local.host.machine import capacity
    from allaboard.backends.local.pool.pool import Pool, default_path

    with suppress(SiteError, OSError):  # the runs are listed even if the pool cannot be read
        pool = Pool(default_path(os.environ), capacity(os.environ, with_gpus=True))
        try:
            described = pool.describe()
        finally:
            pool.close()
        holders = [g for g in described["gangs"] if g["cpu"] or g["memory"] or g["gpus"]]
        if not holders and not described["queue"]:
            return
        free = described["free"]
        room = f"{free['cpu']:g} of {described['capacity']['cpu']:g} CPUs free"
        if described["capacity"]["gpus"]:
            room += f", {len(free['gpus'])} of {len(described['capacity']['gpus'])} GPUs free"
        yield ""
        yield f"slots: {room}" + "".join(f"; {_describe_holder(g)}" for g in holders)
        queue = described["queue"]
        for waiting in queue[:_SHOWN]:
            who, since = f"{waiting['run']} ({waiting['user']})", max(0.0, now - waiting["since"])
            yield f"waits ({waiting['position']}): {who} for {show_seconds(since)}: {waiting['why']}"
        if len(queue) > _SHOWN:
            yield f"and {len(queue) - _SHOWN} more wait"


def _describe_holder(gang: Mapping[str, Any]) -> str:
    suffix = ", left behind by a dead supervisor" if gang["leftover"] else ""
    return f"{gang['run']} ({gang['user']}) holds {_describe_amount(gang)}{suffix}"


def _describe_amount(entry: Mapping[str, Any]) -> str:
    gpus = entry["gpus"]
    count = gpus if isinstance(gpus, int) else len(gpus)
    parts = [
        f"{entry['cpu']:g} CPUs" if entry["cpu"] else "",
        show_bytes(entry["memory"]) if entry["memory"] else "",
    ]
    names = "" if isinstance(gpus, int) or not gpus else f" ({', '.join(gpus)})"
    return ", ".join(p for p in [*parts, f"{count} GPUs{names}" if count else ""] if p) or "no slots"
