"""``allaboard doctor``: why a run waits, fails or looks wrong, with the proof and what to do."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from allaboard.cli.place import Place, json_option, place_options
from allaboard.diagnosis import Diagnosis, Evidence, diagnose
from allaboard.diagnosis.rules import STALLS
from allaboard.errors import BadInput
from allaboard.report.terminal import Ink, say, show_json, shown, supports_colour
from allaboard.runs.observation import RANKS_WAIT, Observation, State
from allaboard.runs.status import state_of
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    from allaboard.backends.base import Backend
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.local.backend import LocalBackend
    from allaboard.diagnosis.last_good import SinceLastGood
    from allaboard.diagnosis.stacks import Standing

EPILOG = """\b
Examples:
  allaboard doctor digits                      a run, live or finished
  allaboard doctor pytorchjob/resnet --json    a job of others, on a cluster
  allaboard doctor --snapshot case.json        what `allaboard snapshot` has written
  kubectl get pods -o json | allaboard doctor --snapshot -

Exit code 0 whenever it could look, whatever it found; 2 when there is no such run, or the snapshot cannot
be read.
"""
WIDTH = 100
MOST_QUOTES = 4
MOST_RANKS = 4
_COMMAND = re.compile(r"`allaboard [^`]*`")
_HARD = "\N{NO-BREAK SPACE}"
COLOURS = {"healthy": "green", "unknown": "yellow"}


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN", required=False)
@click.option("--snapshot", "file", metavar="FILE", help="Look at a snapshot instead of a run; - is stdin.")
@click.option("--causes", is_flag=True, help="Print the pages of all causes, in Markdown, instead.")
@place_options
@json_option
def doctor(run: str | None, file: str | None, causes: bool, at: Place, as_json: bool) -> None:
    """Explain why a run waits, fails or looks wrong: the cause first, with its evidence, whom to blame,
    whether another try helps, and what to do."""
    if causes:
        from allaboard.diagnosis.page import page

        click.echo(page(), nl=False)
        return
    if (run is None) == (file is None):
        raise click.UsageError("name a RUN or --snapshot FILE, one of them")
    stalled, no_stacks, stands = None, None, None
    if file is not None:
        from allaboard.backends.kubernetes.observe.snapshot import read_snapshot

        snapshot = read_file(file)
        seen, name = read_snapshot(snapshot), file
        stalled = _why_it_stood(snapshot)
    else:
        backend, seen = at.open_to_watch(run or "", evidence=True)
        name = seen.run
        stands = _stand(backend, seen)
        stalled, no_stacks = _why_it_stands(stands, seen)
        if stalled is None and at.is_cluster:
            seen = _with_slow_rank_of_pods(cast("KubernetesBackend", backend), seen)
        elif stalled is None:
            seen = _with_slow_rank(cast("LocalBackend", backend), seen)
    since = None
    if file is None:
        from allaboard.report.last_good import since_last_good

        since = since_last_good(backend, seen)
    diagnoses = diagnose(seen, thorough=True)
    if stalled is not None and not (stalled.code == RANKS_WAIT and any(d.code in STALLS for d in diagnoses)):
        diagnoses = (stalled, *(d for d in diagnoses if d.code not in ("healthy", stalled.code)))
    diagnoses = (_with_stacks(diagnoses[0], stands), *diagnoses[1:]) if diagnoses else diagnoses
    if as_json:
        body: dict[str, Any] = {
            "state": state_of(seen).value,
            "diagnoses": [d.to_dict() for d in diagnoses],
        }
        body |= {} if since is None else {"last_good": since.to_dict()}
        show_json(body if no_stacks is None else {**body, "no_stacks": no_stacks})
        return
    for line in lines(seen, name, diagnoses, at, supports_colour()):
        say(line)
    if since is not None:
        for line in lines_since(since, time.time(), Ink(supports_colour())):
            say(line)
    if no_stacks is not None:
        say("")
        for line in _wrapped(no_stacks, "no stacks  "):
            say(line)


def lines_since(since: SinceLastGood, now: float, ink: Ink) -> Iterator[str]:
    """Lines about the difference to the last good run."""
    ago = "" if since.finished is None else f", {show_seconds(now - since.finished)} ago"
    yield ""
    if not since.changes and not since.lines:
        yield ink(f"since the last good run, {since.run}{ago}: nothing is different", "bright_black")
        return
    yield f"since the last good run, {since.run}{ago}:"
    for change in since.changes:
        yield from _wrapped(change, "  ")
    if since.lines:
        yield ink("  lines that it did not write:", "bright_black")
        for member, text in since.lines:
            yield from _wrapped(f"{member}: {text}", "  │ ")


def _stand(backend: Backend, seen: Observation) -> Standing | None:
    """The places of the members of a run that goes on; None: it does not, or it is a job of others."""
    if state_of(seen) is not State.RUNNING or not hasattr(backend, "standing"):
        return None
    return cast("LocalBackend | KubernetesBackend", backend).standing(seen.run)


def _why_it_stands(stands: Standing | None, seen: Observation) -> tuple[Diagnosis | None, str | None]:
    """Diagnosis by the stacks of the ranks of a run whose members run and write nothing; and the reason for
    which there are no stacks.
    """
    from allaboard.diagnosis.stacks import SILENT, diagnose_stacks

    if stands is None:
        return None, None
    silent = stands.silent or 0.0
    usual = seen.progress.longest_pause
    stall = diagnose_stacks(stands.stacks.looks, silent, restarted=seen.restarts > 0, usual=usual)
    return stall, stands.stacks.reason if stall is None and silent >= SILENT else None


def _with_stacks(first: Diagnosis, stands: Standing | None) -> Diagnosis:
    """The diagnosis of a run whose state is unknown, with the places where its ranks are."""
    from allaboard.diagnosis.stacks import positions, where_it_is

    if first.code != "unknown" or stands is None:
        return first
    looks = stands.stacks.looks
    places = [
        Evidence(f"rank {place.rank}", "stack", where_it_is(place, looks)) for place in positions(looks)
    ]
    return replace(first, evidence=(*first.evidence, *places[:MOST_RANKS]))


def _with_slow_rank(backend: LocalBackend, seen: Observation) -> Observation:
    """Observation with the slow rank of a run that trains: as its supervisor reported it, or as its ranks
    answer now.
    """
    from allaboard.backends.local.host.machine import load_text
    from allaboard.backends.local.supervisor.slowness import BETWEEN, LOOKS
    from allaboard.diagnosis.stragglers import slow_of, slow_rank

    if state_of(seen) is not State.RUNNING or seen.slow is not None:
        return seen
    suspect = slow_rank(backend.arrivals(seen.run))
    if suspect is None:
        return seen
    looks = [backend.stacks(seen.run, BETWEEN) for _ in range(LOOKS)]
    return replace(seen, slow=slow_of(suspect, looks, None, load_text()))


def _with_slow_rank_of_pods(backend: KubernetesBackend, seen: Observation) -> Observation:
    """The same of ranks on several nodes, at which it looks for some 10 seconds."""
    from allaboard.diagnosis.stragglers import LOOKS, slow_by_looks

    if state_of(seen) is not State.RUNNING or not hasattr(backend, "look_often"):  # a job of others
        return seen
    pods = seen.objects.pods if seen.objects is not None else ()
    machines = {pod.member: f"its node is {pod.node}" for pod in pods if pod.member and pod.node}
    slow = slow_by_looks(backend.look_often(seen.run, LOOKS), machines)
    return seen if slow is None else replace(seen, slow=slow)


def _why_it_stood(snapshot: Mapping[str, Any]) -> Diagnosis | None:
    """The same of a snapshot, whose stacks are of one moment."""
    from allaboard.diagnosis.stacks import diagnose_stacks, from_dicts

    silent = snapshot.get("silent")
    if isinstance(silent, bool) or not isinstance(silent, (int, float)):
        return None
    return diagnose_stacks(from_dicts(snapshot.get("stacks")), float(silent))


def read_file(file: str) -> Mapping[str, Any]:
    """A snapshot. Raises BadInput for what is none."""
    from allaboard.job.loader import display_name, read_text
    from allaboard.text.untrusted import ANSWERS, Unreadable, parse_json

    name = display_name(file)
    try:
        value = parse_json(
            read_text(file, ANSWERS), ANSWERS, nonfinite=True, spelling=False, any_text=True, unique=False
        )
    except Unreadable as error:
        raise BadInput(f"{name} {error}") from None
    return _as_snapshot(value, name)


def _as_snapshot(value: Any, name: str) -> Mapping[str, Any]:
    """A snapshot, or what kubectl prints: one object, or a List of them. Raises BadInput."""
    from allaboard.backends.kubernetes.observe.snapshot import PARTS, sort_objects

    if not isinstance(value, Mapping):
        raise BadInput(
            f"{name} holds no snapshot: it must be one JSON object with {', '.join(PARTS[:5])}, ..."
        )
    if any(part in value for part in PARTS):
        return value
    if isinstance(value.get("kind"), str):
        return sort_objects(value)
    raise BadInput(f"{name} holds no snapshot: none of {', '.join(PARTS)} is in it")


def lines(
    seen: Observation, name: str, diagnoses: tuple[Diagnosis, ...], at: Place, coloured: bool
) -> Iterator[str]:
    """Lines for people: the cause with its evidence, then the other findings."""
    ink = Ink(coloured)
    first, *others = diagnoses
    colour = COLOURS.get(first.code, "red")
    job = seen.run or seen.job or name
    yield f"{job}  {str(state_of(seen)).replace('_', ' ')}"
    yield ""
    yield from _wrapped(_sentence(first.summary), "", lambda text: ink(text, colour, bold=True))
    yield ""
    for evidence in first.evidence[:MOST_QUOTES]:
        yield from _quote(evidence, ink)
    if first.evidence:
        yield ""
    if first.fix and first.code != "healthy":
        yield from _wrapped(_sentence(at.in_text(first.fix, seen.run)), "to do      ")
    if first.blame:
        yield from _wrapped(first.blame, "look at    ")
    if first.code != "healthy":
        again = "yes, the same job may succeed" if first.retryable else "no, something must change first"
        yield f"try again  {again}"
    yield ink(f"cause      {first.code}, {_how_sure(first.confidence)}", "bright_black")
    for text in first.also[:5]:
        yield from _wrapped(text, "explains   ", lambda t: ink(t, "bright_black"))
    for other in others:
        yield ""
        yield from _wrapped(_sentence(other.summary), "also       ", lambda t: ink(t, "yellow"))
        yield from _wrapped(
            f"{other.code}: {at.in_text(other.fix, seen.run)}",
            "           ",
            lambda t: ink(t, "bright_black"),
        )


def _how_sure(confidence: float) -> str:
    word = "certain" if confidence >= 0.9 else "likely" if confidence >= 0.7 else "a guess on little evidence"
    return f"{word} ({confidence:.0%})"


def _sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.strip(",:;").isalpha() else text


def _quote(evidence: Evidence, ink: Ink) -> Iterator[str]:
    yield ink(f"  {evidence.object} {evidence.field}", "bright_black")
    yield from _wrapped(evidence.text, "  │ ")


def _wrapped(text: str, label: str, paint: Any = str) -> Iterator[str]:
    """Lines within the width; what follows the first stands below it. A command stays whole: half of one must
    not be pasted.
    """
    text = " ".join(shown(text).split())  # before it is folded: half of a secret is not found any more
    whole = _COMMAND.sub(lambda match: match[0].replace(" ", _HARD), text)
    rest = label if label.strip() == "│" else " " * len(label)
    width = WIDTH - len(label)
    parts = textwrap.wrap(whole, width, break_on_hyphens=False, break_long_words=_HARD not in whole) or [""]
    for n, part in enumerate(parts):
        yield f"{label if n == 0 else rest}{paint(part.replace(_HARD, ' '))}"
