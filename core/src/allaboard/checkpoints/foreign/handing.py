"""Hands the newest whole checkpoint of a run over to what starts next, and moves torn ones aside first.

A library that looks for itself takes the highest number, torn or not (`get_last_checkpoint` of Hugging Face),
or what a file names (``latest`` of DeepSpeed). Nothing is removed: ``checkpoint-600`` becomes
``checkpoint-600.torn``. On a disk alone, and only what the run wrote itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from allaboard.checkpoints.foreign import deepspeed, keras, trainer
from allaboard.checkpoints.foreign.adopting import Places
from allaboard.checkpoints.foreign.finding import ASIDE, newest, order, written
from allaboard.checkpoints.foreign.unit import Judgement, Verdict
from allaboard.checkpoints.listing import checkpoint_at
from allaboard.errors import AllaboardError
from allaboard.storage.base import Store
from allaboard.storage.disk import translate_os_errors
from allaboard.text.untrusted import show


@dataclass(frozen=True, slots=True)
class Handed:
    """``files``: the checkpoint to go on from, a folder or a file; None: there is none. ``step``: its step,
    as far as it tells one. ``moved``: a sentence for each torn one that was moved aside.
    """

    files: str | None = None
    step: int | None = None
    moved: tuple[str, ...] = ()


def hand_over(
    places: Places, start_from: str | None = None, *, move_aside: bool, taken: Handed | None = None
) -> Handed:
    """The newest whole checkpoint of a run; without one that which its job says to start from.
    ``move_aside``: nobody writes, so what is torn stays torn. ``taken``: what others of the gang took just
    before, which is kept while it `stands`. Raises StorageError.
    """
    judged = [item for _, item in places.judged()]
    moved = tuple(move_torn(places, judged)) if move_aside else ()
    if taken is not None:
        whole_ones = (item for item in judged if item.verdict is Verdict.WHOLE)
        orders: dict[str | None, tuple[int, float]] = {item.unit.path: order(item) for item in whole_ones}
        is_given = taken.files == given(start_from).files
        if (is_given or taken.files in orders) and stands(orders.get(taken.files), orders.values()):
            return replace(taken, moved=moved)
    whole = newest(judged)
    if whole is None:
        return given(start_from, moved)
    return Handed(whole.unit.path, whole.facts.step, moved)


def stands(chosen: tuple[int, float] | None, whole: Iterable[tuple[int, float]]) -> bool:
    """True if a choice holds for a member that starts after others took it: at most one whole checkpoint is
    newer. One more may have been in the making when they chose, and two say that the gang has trained on.
    Both by step and time, as of `finding.order`. ``chosen``: None: no checkpoint of the run was there.
    """
    return sum(chosen is None or other > chosen for other in whole) < 2


def given(start_from: str | None, moved: tuple[str, ...] = ()) -> Handed:
    """The checkpoint that a job says to start from, where it is on this disk."""
    if start_from is not None and "://" not in start_from:
        with suppress(AllaboardError):  # the script says what it needs
            item = checkpoint_at(start_from)[1]
            return Handed(item.files, item.step, moved)
    return Handed(moved=moved)


def move_torn(places: Places, judged: list[Judgement]) -> Iterator[str]:
    """Move what is torn aside; a sentence for each. Raises StorageError."""
    for item in judged:
        torn = item.unit.store.local_path(item.unit.name) if item.unit.name else None
        if item.verdict is Verdict.TORN and torn is not None and written(item.unit) >= places.since:
            yield put_aside(torn, f"is torn ({item.reason})")
            if item.format == deepspeed.FORMAT:
                _rewrite_latest(torn, judged)
            # The epoch of BackupAndRestore, which would go on from there with new weights.
            epoch = torn.with_name(keras.METADATA)
            if item.format == keras.FORMAT and torn.name == keras.BACKUP and epoch.is_file():
                yield put_aside(epoch, f"is torn (its {torn.name} is)")
    for folder in _empty_folders(places):
        yield put_aside(folder, "is torn (it is empty)")


def put_aside(path: Path, trouble: str) -> str:
    """Rename what is there, so that no library takes it for a checkpoint; a sentence for it. Raises
    StorageError.
    """
    aside = path.with_name(f"{path.name}{ASIDE}")
    tries = 1
    while aside.exists():
        tries += 1
        aside = path.with_name(f"{path.name}{ASIDE}-{tries}")
    with translate_os_errors(path, "moving"):
        path.rename(aside)
    return f"{show(str(path), 500, quote=False)} {trouble}, and was moved to {show(aside.name)}"


def _rewrite_latest(torn: Path, judged: list[Judgement]) -> None:
    """``latest`` of a folder of DeepSpeed, which named what was moved, names the newest whole one, or goes
    aside.
    """
    latest = torn.with_name(deepspeed.LATEST)
    with translate_os_errors(latest, "writing"), suppress(FileNotFoundError):
        if latest.read_bytes()[:256].decode(errors="replace").strip() != torn.name:
            return
        beside = (
            item
            for item in judged
            if item.format == deepspeed.FORMAT
            and item.unit.store.local_path(item.unit.name) == torn.with_name(item.unit.base)
        )
        whole = newest(beside)
        if whole is None:
            latest.rename(latest.with_name(f"{deepspeed.LATEST}{ASIDE}"))
        else:
            latest.write_text(whole.unit.base)


def _empty_folders(places: Places) -> Iterator[Path]:
    """Folders that a killed process made for a checkpoint before the first file; a listing of objects has
    none of them.
    """
    for store in _stores(places):
        root = store.local_path()
        if root is None or not root.is_dir():
            continue
        for path in sorted(root.iterdir()):
            is_meant = trainer.FOLDER.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
            if is_meant and not any(path.iterdir()) and path.stat().st_mtime >= places.since:
                yield path


def _stores(places: Places) -> tuple[Store, ...]:
    return (places.own, places.own.above()) if places.job else (places.own,)
