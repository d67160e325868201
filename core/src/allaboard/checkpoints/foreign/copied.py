"""The checkpoint with which members start whose script saves into a folder, and whose copies are in a bucket.

The folder may be of each pod alone: then a pod on another node has none of it, and all members of an attempt
take the copy that its leader chose; the choices lie in the bucket. Where all members see one folder, the
leader brings the newest back, and the choices lie there.

The leader first copies what its folder has whole. What is newer in a member's own folder than the choice is
moved aside, as what is torn: a script that looks for itself takes the highest number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from allaboard.checkpoints.foreign.adopting import Places, adopt, step_of_judgement
from allaboard.checkpoints.foreign.handing import Handed, given, hand_over, move_torn, put_aside
from allaboard.checkpoints.foreign.mirroring import copy_newest, fetch_newest, fetch_step
from allaboard.checkpoints.foreign.starting import Starter, agree, choose
from allaboard.checkpoints.foreign.unit import Verdict
from allaboard.checkpoints.listing import complete_checkpoint, list_checkpoints
from allaboard.checkpoints.manifest import Manifest, folder_name
from allaboard.checkpoints.names import STARTS
from allaboard.errors import AllaboardError, StorageError
from allaboard.storage.base import Store

BUSY = f"{STARTS}/busy"
BEAT = 10.0
"""Seconds between two signs of a leader that copies or fetches."""


@dataclass(frozen=True, slots=True)
class Copying:
    """The copies of a run. ``is_shared``: all members see its folder; ``keep``, ``best``: of retention;
    ``clock``: epoch seconds.
    """

    bucket: Store
    is_shared: bool
    keep: int | None
    best: tuple[str, str] | None
    template: Manifest
    clock: Callable[[], float]

    def starts(self, places: Places) -> Store:
        """The store of the choices."""
        return places.own if self.is_shared else self.bucket


def start(
    places: Places,
    copying: Copying,
    me: Starter,
    start_from: str | None,
    wait: Callable[[], bool],
    again: Callable[[], bool],
    say: Callable[[str], None],
) -> Handed:
    """The checkpoint with which this member starts. ``wait``: of `agree`; ``again``: waits before the next
    try of a place that failed, False once it had its time; ``say``: takes sentences for the log. A bucket
    that does not answer is told, and the folder's own newest is taken. Raises AllaboardError where it is
    known which one the others take, and that cannot be had.
    """
    moved: tuple[str, ...] = ()
    if me.leads:
        moved = tuple(move_torn(places, [item for _, item in places.judged()]))
        with _busy(copying.starts(places)):
            while True:
                try:
                    _prepare(places, copying, say)
                    break
                except AllaboardError as error:
                    if not again():
                        say(f"{_unknown(copying, error)}; goes on with what its folder has")
                        handed = hand_over(places, start_from, move_aside=False)
                        return replace(handed, moved=moved)
    if copying.is_shared:
        handed = choose(places, me, start_from, wait)
    else:
        handed = _take(places, copying, me, start_from, wait, again, say)
    return replace(handed, moved=(*moved, *handed.moved))


def beats(starts: Store, beat: Callable[[], bool], restart: Callable[[], None]) -> Callable[[], bool]:
    """``beat``, a wait that ends some time after the last ``restart``, restarted at each sign of a leader."""
    seen: list[bytes | None] = [None]

    def wait() -> bool:
        with suppress(StorageError):
            sign = starts.read(BUSY, 0, 20)
            if sign != seen[0]:
                seen[0] = sign
                restart()
        return beat()

    return wait


def _prepare(places: Places, copying: Copying, say: Callable[[str], None]) -> None:
    """The newest whole checkpoint is in the folder and in the bucket."""
    adopt(places, copying.template)
    copied = copy_newest(places.own, copying.bucket, copying.keep, copying.best, copying.clock)
    if copied.checkpoint is not None and copied.is_new:
        say(f"step {copied.checkpoint.step} is at {copied.checkpoint.uri} now")
    fetched = fetch_newest(places, copying.bucket, copying.clock)
    for note in fetched.notes:
        say(note)
    if fetched.files is not None:
        say(f"step {fetched.step} of {copying.bucket.uri} is in {fetched.files} now")


def _take(
    places: Places,
    copying: Copying,
    me: Starter,
    start_from: str | None,
    wait: Callable[[], bool],
    again: Callable[[], bool],
    say: Callable[[str], None],
) -> Handed:
    """The choice of the gang, brought into this member's own folder."""
    while True:
        try:
            choice = agree(
                copying.bucket, me, lambda: _whole(places, copying.bucket, me.leads), lambda _: True, wait
            )
            break
        except AllaboardError as error:
            if not again():
                say(f"{_unknown(copying, error)}; goes on with what its folder has")
                return hand_over(places, start_from, move_aside=True)
    if choice.place is None or choice.step is None:
        return given(start_from, tuple(_move_others(places, None, -1, is_leader=me.leads)))
    while True:
        try:
            return _take_step(places, copying, choice.step, say, is_leader=me.leads)
        except AllaboardError:
            if not again():
                raise


def _take_step(
    places: Places, copying: Copying, step: int, say: Callable[[str], None], *, is_leader: bool
) -> Handed:
    path = _path_here(places, copying.bucket, step)
    moved = tuple(_move_others(places, path, step, is_leader=is_leader))
    if path is None:
        fetched = fetch_step(places, copying.bucket, step, copying.clock)
        path = fetched.files
        for note in fetched.notes:
            say(note)
        say(f"step {step} of {copying.bucket.uri} is in {path} now")
    return Handed(path, step, moved)


def _whole(places: Places, bucket: Store, is_leader: bool) -> Mapping[str, tuple[int, float]]:
    """The copies by their places in the bucket; of a leader those that its folder's newest leaves: one that
    cannot be read whole was passed over.
    """
    steps = [item.step for item in list_checkpoints(bucket)]
    if is_leader:
        have = max(_steps_here(places), default=-1)
        steps = [step for step in steps if step <= have]
    return {f"./{folder_name(step)}": (step, 0.0) for step in steps}


def _steps_here(places: Places) -> Iterator[int]:
    for _, item in places.judged():
        if item.verdict is Verdict.WHOLE:
            yield step_of_judgement(item)[0]
    for checkpoint in list_checkpoints(places.own):
        yield checkpoint.step


def _path_here(places: Places, bucket: Store, step: int) -> str | None:
    """The path of a step of the bucket that the folder has whole already; None: it lacks it."""
    copy = next((item for item in list_checkpoints(bucket) if item.step == step), None)
    if copy is None:
        return None
    back = replace(copy.manifest, place=copy.manifest.origin, origin=None)
    path = complete_checkpoint(places.own, back).files
    if copy.manifest.origin is None:
        return path if any(item.step == step for item in list_checkpoints(places.own)) else None
    is_whole = any(item.unit.path == path for _, item in places.judged() if item.verdict is Verdict.WHOLE)
    return path if is_whole else None


def _move_others(places: Places, path: str | None, step: int, *, is_leader: bool) -> Iterator[str]:
    """Move aside what is newer than a step, and of members other than the leader what is torn: some write
    files of their own into each. ``path``: what stays.
    """
    judged = [item for _, item in places.judged()]
    if not is_leader:
        yield from move_torn(places, judged)
    for item in judged:
        if item.verdict is not Verdict.WHOLE or not item.unit.name or item.unit.path == path:
            continue
        if step_of_judgement(item)[0] > step:
            yield put_aside(Path(item.unit.path), "is newer than what all members start with")


def _unknown(copying: Copying, error: AllaboardError) -> str:
    return f"whether {copying.bucket.uri} has a newer checkpoint is not known: {error}"


@contextmanager
def _busy(starts: Store) -> Iterator[None]:
    """Show those who wait that the leader is at work."""
    over = threading.Event()

    def beat() -> None:
        count = 0
        while True:
            count += 1
            with suppress(StorageError):
                starts.write(BUSY, b"%d" % count)
            if over.wait(BEAT):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
