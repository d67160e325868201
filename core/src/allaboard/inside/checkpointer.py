"""Save and resume, from the training script.

    ckpt = Checkpointer()                            # where, how often, how many: from the job
    found = ckpt.resume()
    if found:
        model.load_state_dict(found.load()["model"])
    for step in range(found.step + 1 if found else 1, total + 1):
        train(...)
        ckpt.step(step, lambda: {"model": model.state_dict()}, metrics={"val_loss": loss})

Rank 0 saves; every rank may call everything, and calls `resume` in the same place. A checkpoint is there
whole or not at all. What is saved is the whole state, so it resumes at any world size. On SIGTERM the next
`step` saves and ends the script with exit code 143. An error while saving is the script's: it is raised,
and names the checkpoint, the trouble and what to do. Where the job says ``checkpoints.hot``, `step` keeps a
second copy of the newest state on fast storage, and `resume` takes it where it is newer.

A run's folder has one writer at a time: the process that began to train last. One that was taken over ends
with `TakenOver` at its next save; what it wrote in between counts for nobody.

Works without torch (bytes and files can be saved) and without allaboard around it
(``Checkpointer(uri="checkpoints/my-run")``).
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from allaboard import __version__
from allaboard.checkpoints import Checkpoint, Manifest, Torn, folder_name, parse_best, prune, save, scan
from allaboard.checkpoints.metrics import best_of, number
from allaboard.checkpoints.retention import PARTS_AFTER, check_keep, retire
from allaboard.checkpoints.saving import Source, make_folder, sweep_staging
from allaboard.errors import (
    AllaboardError,
    BadInput,
    Corrupt,
    StorageDenied,
    StorageError,
    StorageFull,
    TakenOver,
)
from allaboard.inside.context import ranks
from allaboard.inside.every import Every
from allaboard.inside.hot import HotCopy
from allaboard.inside.report import write_report
from allaboard.inside.resumed_checkpoint import BYTES_PART, TORCH_PART, ResumedCheckpoint, open_start
from allaboard.inside.shutdown import EXIT_CODE, shutdown
from allaboard.inside.tracing import span
from allaboard.inside.writer import writer_of
from allaboard.storage import open_store
from allaboard.storage.base import Store, join
from allaboard.storage.disk import translate_os_errors
from allaboard.text.units import rfc3339

#: With less than this share of a disk free, retired checkpoints are removed without the hour's delay.
SCARCE = 0.2
#: The flag of a run whose folder of checkpoints another process writes now.
TAKEN_OVER = "checkpoint_taken_over"

Metrics = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


class Checkpointer:
    """Saves the state of a training and finds it again.

        ckpt = Checkpointer()                            # where, how often, how many: from the job
        found = ckpt.resume()
        if found:
            model.load_state_dict(found.load()["model"])
        for step in range(found.step + 1 if found else 1, total + 1):
            train(...)
            ckpt.step(step, lambda: {"model": model.state_dict()}, metrics={"val_loss": loss})

    Every rank makes the same calls; rank 0 saves. The whole state is saved, so it resumes at any world size.
    On SIGTERM the next `step` saves and ends the script with exit code 143. torch is needed for its own
    states alone: bytes and files are saved without it.

    :param uri: the run's own folder.
    :param every: how often `step` saves: a number of steps (50), or a time ("10m").
    :param keep: how many of the newest checkpoints stay. The best one and the newest one always stay.
    :param best: which checkpoint is the best: "val_loss:min", or ("val_loss", "min").

    An argument that is left out comes from the job, by the environment that allaboard sets. Raises BadInput
    when there is no folder to save to, or a value is wrong.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str] | None = None,
        every: str | int | None = None,
        keep: int | None = None,
        best: str | tuple[str, str] | None = None,
    ) -> None:
        place = uri or os.environ.get("ALLABOARD_CHECKPOINTS")
        if not place:
            raise BadInput(
                "no folder to save checkpoints to: give Checkpointer(uri=...), "
                "or checkpoints.uri in the job (allaboard then sets ALLABOARD_CHECKPOINTS)"
            )
        self._store: Store = open_store(place)
        self._every = Every.parse(
            every if every is not None else os.environ.get("ALLABOARD_CHECKPOINT_EVERY")
        )
        self._keep = check_keep(
            keep if keep is not None else _integer_of_environment("ALLABOARD_CHECKPOINT_KEEP")
        )
        chosen = best if best is not None else os.environ.get("ALLABOARD_CHECKPOINT_BEST")
        self._best = parse_best(chosen if isinstance(chosen, str) else ":".join(chosen)) if chosen else None
        hot = os.environ.get("ALLABOARD_CHECKPOINT_HOT")
        hot_every = Every.parse(os.environ.get("ALLABOARD_CHECKPOINT_HOT_EVERY"))
        self._hot = HotCopy(hot, hot_every) if hot else None
        self._writer = writer_of(self._store)
        self._has_begun = False
        self._parent: str | None = None
        self._last_step = 0
        self._last_time = time.monotonic()
        self._warned: set[str] = set()
        shutdown.install(ranks)

    @property
    def uri(self) -> str:
        """The run's own folder."""
        return self._store.uri

    # --- resume

    def resume(self) -> ResumedCheckpoint | None:
        """The checkpoint to continue from: the newest complete one of this run, of any attempt; else that of
        ``start_from``; else None.

        A damaged one is skipped with a warning, and the one before is used. Every byte is verified when this
        returns. All ranks get the same answer; call it on all of them, after ``init_process_group`` if there
        is one. Raises BadInput for a ``start_from`` that is not there, `Corrupt` for one that is damaged,
        TakenOver when another attempt has taken over from this one, StorageError.
        """
        checkpoint = self._find_on_rank0()
        self._writer.begin(checkpoint.step if checkpoint is not None and checkpoint.resumed else None)
        if checkpoint is not None:
            self._parent = checkpoint.checkpoint.manifest.parent if checkpoint.resumed else checkpoint.uri
            self._last_step = checkpoint.step
            self._last_time = time.monotonic()
            if self._hot is not None:
                self._hot.begin(checkpoint.step)
            write_report(
                "resumed",
                step=checkpoint.step,
                **{"from": checkpoint.uri},
                attempt=_integer_of_environment("ALLABOARD_ATTEMPT"),
            )
        return checkpoint

    def _find_on_rank0(self) -> ResumedCheckpoint | None:
        """Rank 0 finds the checkpoint and broadcasts it, or its error: a rank that failed alone would leave
        its peers waiting.
        """
        dist = _distributed()
        if dist is None:
            return self._find_checkpoint()
        box: list[Any] = [None]
        own: ResumedCheckpoint | None = None
        if dist.get_rank() == 0:
            try:
                own = self._find_checkpoint()
                box[0] = own and (own.checkpoint, own.resumed)
            except AllaboardError as error:
                box[0] = error
        dist.broadcast_object_list(box, src=0)
        if isinstance(box[0], AllaboardError):
            raise box[0]
        if own is not None or box[0] is None:
            return own
        checkpoint, resumed = box[0]
        store = self._store if resumed else open_store(checkpoint.uri.rpartition("/")[0])
        return ResumedCheckpoint(store, checkpoint, resumed=resumed, step=None if resumed else 0)

    def _find_checkpoint(self) -> ResumedCheckpoint | None:
        if ranks()[0] == 0:
            self._prepare()
            with self._told_when_taken_over():
                self._writer.look()
                self._take_hot()
        for item in reversed(scan(self._store)):
            if isinstance(item, Checkpoint) and item.manifest.place is not None:
                continue  # another library's, which reads it itself
            if isinstance(item, Torn):
                self._warn_damaged(item.uri, "; ".join(item.problems))
                continue
            checkpoint = ResumedCheckpoint(self._store, item)
            try:
                checkpoint.fetch()
            except Corrupt as error:
                self._warn_damaged(item.uri, str(error))
                self._set_aside(item, str(error))
                continue
            return checkpoint
        return self._find_start()

    def _take_hot(self) -> None:
        """Write a hot copy that is newer than all that is here to where every rank finds it."""
        if self._hot is None:
            return
        complete = [item.step for item in scan(self._store) if isinstance(item, Checkpoint)]
        copy = self._hot.newer_than(max(complete, default=0), self._writer.is_left_behind)
        if copy is None:
            return
        self._writer.begin(copy.step)
        manifest, parts = copy.checkpoint.manifest, {name: copy.path(name) for name in copy.parts}
        with self._explain_errors(f"saving step {copy.step}", folder_name(copy.step)):
            self._write(manifest, parts)
        print(
            f"allaboard: step {copy.step} is taken over from the hot copy {copy.uri}",
            file=sys.stderr,
            flush=True,
        )

    def _find_start(self) -> ResumedCheckpoint | None:
        start = os.environ.get("ALLABOARD_START_FROM")
        if not start or start == "none":
            return None
        try:
            checkpoint = open_start(start)
            checkpoint.fetch()
        except (BadInput, Corrupt) as error:
            raise type(error)(f"checkpoints.start_from: {error}") from error
        return checkpoint

    def _prepare(self) -> None:
        """Find out now, not after an hour of training, that nothing can be written here."""
        root = self._store.local_path()
        if root is None:
            return
        with self._explain_errors("opening"):
            with translate_os_errors(root, "making"):
                make_folder(root)
            if not os.access(root, os.W_OK | os.X_OK):
                raise StorageDenied(
                    f"{root}: this process may not write there; give it the permission, or use another folder"
                )
        sweep_staging(root)

    def _warn_damaged(self, uri: str, reason: str) -> None:
        text = f"checkpoint {uri} is damaged and was passed over for the one before: {reason}"
        self._warn("checkpoint_corrupt", text)

    def _set_aside(self, item: Checkpoint, reason: str) -> None:
        """Retire a damaged checkpoint: retention would otherwise keep it as the newest and retire the
        complete one before.
        """
        if ranks()[0] != 0:
            return
        try:
            retire(self._store, item.step, [part.name for part in item.manifest.parts], time.time(), reason)
        except StorageError as error:
            self._warn(
                "checkpoint_retention",
                f"checkpoint {item.uri} is damaged and could not be set aside: {error}",
            )

    # --- save

    def step(self, step: int, state: Callable[[], Any], metrics: Metrics = None) -> Checkpoint | None:
        """Tell that a step is done. A checkpoint is saved if one is due, or if SIGTERM came; after
        SIGTERM the script ends with exit code 143.

        ``step`` counts the steps done, from 1. ``state`` is a function, called on rank 0 and only when
        something is saved; it returns what `save` takes. ``metrics`` may be such a function too, when they
        cost an evaluation; on SIGTERM it is not called, for there is little time. Comes back with the
        checkpoint when one was written by this process, else None. Raises as `save` does.
        """
        if hasattr(state, "state_dict") or not callable(state):
            raise BadInput(
                f"Checkpointer.step: {type(state).__name__} is not a function that returns the state; "
                "write lambda: model.state_dict(), so that nothing is built when nothing is due"
            )
        folder_name(step)  # an invalid step is an error on every rank at once
        if ranks()[0] != 0:
            self._writer.follow(step)
            shutdown.after_step(time.monotonic())
            return None
        self._begin()
        due = self._every.due(step, self._last_step, time.monotonic(), self._last_time)
        if not due and not shutdown.requested:
            self._save_hot(step, state, metrics)
            return None
        if not due and step == self._last_step:
            self._exit_after_save(step)
        if shutdown.requested and callable(metrics):
            metrics = None  # an evaluation may take longer than there is until SIGKILL
        return self.save(step, state(), metrics)

    def save(self, step: int, state: Any, metrics: Metrics = None) -> Checkpoint | None:
        """Save now. ``state`` is anything that torch saves, or bytes, or parts: a mapping of names to bytes
        and paths of files. ``metrics`` are numbers by name, or a function that returns them.

        On other ranks than 0 nothing happens, and None comes back. When this returns, the checkpoint is
        whole and durable. A step that was saved before is replaced; at every moment the old one or the new
        one is there. Raises BadInput, StorageError, and TakenOver when another process has become the writer
        of the run's folder: then nothing was saved, and the script should end.
        """
        rank, world = ranks()
        if rank != 0:
            return None
        metrics = metrics() if callable(metrics) else metrics
        manifest = self._manifest(step, world).with_metrics(metrics)
        saving = span("checkpoint.save", step=step)
        with (
            saving,
            self._explain_errors(f"saving step {step}", folder_name(step)),
            self._told_when_taken_over(),
        ):
            saved = self._write(manifest, _parts_of(state))
        self._last_step, self._last_time = step, time.monotonic()
        best = self._prune_after_save(saved)
        size = saved.manifest.size
        write_report("checkpoint", step=step, uri=saved.uri, metrics=metrics or {}, best=best, bytes=size)
        if shutdown.requested:
            self._exit_after_save(step)
        return saved

    def _save_hot(self, step: int, state: Callable[[], Any], metrics: Metrics) -> None:
        """The second copy, if it is due. It is worth no training: trouble with it is told, and no more."""
        if self._hot is None or not self._hot.is_due(step):
            return
        manifest = self._manifest(step, ranks()[1]).with_metrics(None if callable(metrics) else metrics)
        parts = _parts_of(state())
        try:
            with self._told_when_taken_over():
                manifest = replace(manifest, writer=self._claim())
            self._hot.save(manifest, parts)
        except StorageError as error:
            self._hot.begin(step)
            code = "checkpoint_hot"
            if code not in self._warned:
                self._warn(code, f"the hot copy of the state could not be saved: {error}")
            self._warned.add(code)

    def _manifest(self, step: int, world: int) -> Manifest:
        return Manifest(
            step=step,
            run=os.environ.get("ALLABOARD_RUN"),
            attempt=_integer_of_environment("ALLABOARD_ATTEMPT"),
            generation=_integer_of_environment("ALLABOARD_GENERATION"),
            world_size=world,
            created=rfc3339(time.time()),
            parent=self._parent,
            versions=_versions(),
        )

    def _write(self, manifest: Manifest, parts: Mapping[str, Source]) -> Checkpoint:
        try:
            return self._save_as_writer(manifest, parts)
        except StorageFull:
            if not self._free_space(manifest.step):
                raise
        return self._save_as_writer(manifest, parts)

    def _save_as_writer(self, manifest: Manifest, parts: Mapping[str, Source]) -> Checkpoint:
        number = self._claim()
        self._writer.check()  # before anything large is sent for nothing
        return save(self._store, replace(manifest, writer=number), parts, check=self._writer.check)

    def _begin(self) -> None:
        """At the first step, so that a process that this one replaces learns of it soon. A store that does
        not answer is asked again by the first save.
        """
        if self._has_begun:
            return
        self._has_begun = True
        with suppress(StorageError), self._told_when_taken_over():
            self._claim()

    def _claim(self) -> int:
        number = self._writer.claim()
        if self._writer.doubt is not None:
            self._warn(
                "checkpoint_writers",
                f"two processes could write checkpoints here at the same time: {self._writer.doubt}",
            )
        return number

    @contextmanager
    def _told_when_taken_over(self) -> Iterator[None]:
        try:
            yield
        except TakenOver as error:
            if TAKEN_OVER not in self._warned:
                self._warned.add(TAKEN_OVER)
                write_report("flag", code=TAKEN_OVER, text=str(error))
            raise

    def _free_space(self, step: int) -> bool:
        """Remove old checkpoints that wait for their hour: they are worth less than the state of now."""
        with suppress(StorageError):
            return self._store.local_path() is not None and self._prune(step, parts_after=0.0) > 0
        return False

    def _prune_after_save(self, saved: Checkpoint) -> bool | None:
        """Retire old checkpoints; returns whether the saved one is the best (None: no metric is
        configured).
        """
        try:
            if self._keep is not None:
                self._prune(saved.step, 0.0 if self._is_space_scarce() else PARTS_AFTER)
            return self._is_best(saved)
        except StorageError as error:
            # The state is safe; old ones that stay are no reason to end a training.
            self._warn("checkpoint_retention", f"old checkpoints in {self.uri} could not be removed: {error}")
            return None

    def _prune(self, step: int, parts_after: float) -> int:
        return prune(
            self._store,
            self._keep,
            self._best,
            time.time(),
            parts_after=parts_after,
            protect=(step,),
            writer=self._writer.number,
        ).bytes

    def _is_space_scarce(self) -> bool:
        root = self._store.local_path()
        if root is None:
            return False
        usage = shutil.disk_usage(root)
        return usage.free < SCARCE * usage.total

    def _is_best(self, saved: Checkpoint) -> bool | None:
        if self._best is None:
            return None
        metric, mode = self._best
        if number(saved.metrics, metric) is None:
            if metric not in saved.metrics and not shutdown.requested:
                known = ", ".join(sorted(saved.metrics)) or "none"
                self._warn(
                    "checkpoint_best",
                    f"the best checkpoint is by {metric!r}, which was not given (given: {known})",
                )
            return False
        saved_before = [item for item in scan(self._store) if isinstance(item, Checkpoint)]
        ranked = best_of(saved_before, lambda item: item.metrics, metric, mode)
        return bool(ranked) and ranked[0].step == saved.step

    # --- leave

    def close(self) -> None:
        """Restore the earlier SIGTERM handler. If SIGTERM came meanwhile, the script ends with
        exit code 143.
        """
        asked = shutdown.requested
        shutdown.uninstall()
        if asked:
            raise SystemExit(EXIT_CODE)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def _exit_after_save(self, step: int) -> None:
        print(
            f"allaboard: SIGTERM: step {step} is saved in {self.uri}; this process ends",
            file=sys.stderr,
            flush=True,
        )
        raise SystemExit(EXIT_CODE)

    # --- say

    def _explain_errors(self, doing: str, folder: str = "") -> _ErrorContext:
        return _ErrorContext(join(self.uri, folder), doing)

    def _warn(self, code: str, text: str) -> None:
        if ranks()[0] != 0 or text in self._warned:
            return
        self._warned.add(text)
        print(f"allaboard: {text}", file=sys.stderr, flush=True)
        write_report("flag", code=code, text=text)


class _ErrorContext:
    """Puts the checkpoint's uri in front of what went wrong with it; the kind and the code of the error
    stay.
    """

    def __init__(self, uri: str, doing: str) -> None:
        self._uri, self._doing = uri, doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StorageError):
            trouble = str(error).removeprefix(f"{self._uri}: ")
            text = f"checkpoint {self._uri}: {self._doing} failed: {trouble}"
            raise type(error)(text, code=error.code) from error


def _distributed() -> Any:
    """torch.distributed when the script uses it; torch is never imported for this."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _integer_of_environment(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise BadInput(f"{name}={text!r} is not a whole number; allaboard sets it, leave it as it was")
    return int(text)


def _parts_of(state: Any) -> Mapping[str, Source]:
    if isinstance(state, (bytes, bytearray, memoryview)):
        return {BYTES_PART: state}
    if isinstance(state, Mapping) and state and all(_is_part(name, value) for name, value in state.items()):
        return state
    return {TORCH_PART: lambda file: _save_with_torch(state, file)}


def _is_part(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, (bytes, bytearray, memoryview, Path))


def _save_with_torch(state: Any, file: Any) -> None:
    try:
        import torch
    except ImportError as error:
        raise BadInput(
            f"a state of type {type(state).__name__} is saved by torch, which is not installed; "
            "install torch, or give bytes, or a mapping of names to bytes and paths"
        ) from error
    with _without_crc32(torch.serialization):
        torch.save(state, file)


@contextmanager
def _without_crc32(serialization: Any) -> Iterator[None]:
    """The manifest's SHA-256 covers every byte. torch's own checksum costs a quarter of the save, and
    `torch.load` does not check it.
    """
    switch = getattr(serialization, "set_crc32_options", None)  # since torch 2.6
    if switch is None:
        yield
        return
    before = serialization.get_crc32_options()
    switch(False)
    try:
        yield
    finally:
        switch(before)


def _versions() -> dict[str, str]:
    versions = {"allaboard": __version__, "python": platform.python_version()}
    torch = sys.modules.get("torch")
    return versions if torch is None else {**versions, "torch": str(torch.__version__)}
