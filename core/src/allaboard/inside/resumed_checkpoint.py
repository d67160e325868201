"""A checkpoint that was found, as the training script sees it."""

from __future__ import annotations

import atexit
import os
import pickle
import re
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from allaboard.checkpoints import Checkpoint, Part, checkpoint_at, read_manifest
from allaboard.checkpoints.holds import hold_checkpoint
from allaboard.checkpoints.listing import object_problem, part_key, place_of
from allaboard.errors import BadInput, Corrupt, StorageMissing
from allaboard.storage import open_store
from allaboard.storage.base import Store
from allaboard.storage.scratch import scratch

#: What a state is called that the script gave without a name: what torch saved, and plain bytes.
TORCH_PART = "state.pt"
BYTES_PART = "state.bin"


class ResumedCheckpoint:
    """A complete checkpoint. ``step`` is where training continues, ``metrics`` were measured there.

    ``resumed`` is True for a checkpoint of this very run; False when training starts from other weights
    (``start_from``): then ``step`` is 0, because this run has done none, and ``checkpoint.step`` is the step
    of those weights.
    """

    def __init__(
        self, store: Store, checkpoint: Checkpoint, *, resumed: bool = True, step: int | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.resumed = resumed
        self.step = checkpoint.step if step is None else step
        self._store = store
        self._verified: dict[str, Path] = {}
        self._scratch: Path | None = None

    def __repr__(self) -> str:
        return f"Found(step={self.step}, uri={self.uri!r}, resumed={self.resumed})"

    @property
    def uri(self) -> str:
        """The folder of the checkpoint."""
        return self.checkpoint.uri

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Numbers by name; one that was not finite is None."""
        return self.checkpoint.metrics

    @property
    def parts(self) -> list[str]:
        """The names of the parts, as the script gave them."""
        return [part.called for part in self.checkpoint.manifest.parts]

    def load(self) -> Any:
        """Load the saved state: that of torch (on the CPU, weights only), the bytes, or the parts' bytes by
        name.

        Every byte is checked first. On a local disk tensors lie in the checkpoint's file until they are
        written to, which leaves the file as it is. Raises `Corrupt` when the bytes are not those of the
        manifest, BadInput when torch refuses to load the state as plain weights.
        """
        if self.parts == [TORCH_PART]:
            return self._load_torch()
        if self.parts == [BYTES_PART]:
            return self.path().read_bytes()
        return {name: self.path(name).read_bytes() for name in self.parts}

    def path(self, part: str | None = None) -> Path:
        """A part as a local file, verified; the only part when none is named. From a bucket it is fetched
        to a temporary folder.

        Read it, and leave it as it is. Raises `Corrupt`, StorageError, and BadInput for a part that is not
        there.
        """
        named = self._part(part)
        if named.name not in self._verified:
            self._verified[named.name] = self._fetch(named)
        return self._verified[named.name]

    def fetch(self) -> None:
        """Verify every part now. Raises `Corrupt`, naming the part."""
        for name in self.parts:
            self.path(name)

    def _part(self, name: str | None) -> Part:
        if name is None and len(self.parts) == 1:
            name = self.parts[0]
        named = None if name is None else self.checkpoint.manifest.part(name)
        if named is None:
            trouble = "name a part" if name is None else f"there is no part {name!r}"
            raise BadInput(f"{self.uri}: {trouble}; the parts are: {', '.join(self.parts)}")
        return named

    def _fetch(self, part: Part) -> Path:
        store, prefix = place_of(self._store, self.checkpoint.manifest)
        key = part_key(prefix, part)
        path = store.local_path(key)
        if path is not None:
            return self._verify_file(path, part)
        copy = self._scratch_folder() / part.name
        try:
            store.download(key, copy)
            # Read again from this machine's disk, so that a bad transfer is seen as well.
            return self._verify_file(copy, part)
        except BaseException:
            with suppress(OSError):  # as large as the state, and of no use
                copy.unlink()
            raise

    def _verify_file(self, path: Path, part: Part) -> Path:
        if problem := object_problem(open_store(path.parent), path.name, part):
            raise Corrupt(f"{self.uri}: {problem}; use an earlier checkpoint")
        return path

    def _scratch_folder(self) -> Path:
        if self._scratch is None:
            until_the_end = ExitStack()
            self._scratch = until_the_end.enter_context(scratch())
            atexit.register(until_the_end.close)
        return self._scratch

    def _load_torch(self) -> Any:
        import torch

        path = self.path()
        try:
            # The bytes have just been read to be verified: mapped, they are not copied once more.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=_may_be_mapped(path))
        except pickle.UnpicklingError as error:
            reason = str(error).strip().partition("\n")[0]
            raise BadInput(
                f"{self.uri}: the state holds more than tensors and plain values; torch does not run "
                f"foreign code by default ({reason}); if you trust it: "
                "torch.load(checkpoint.path(), weights_only=False)"
            ) from error
        finally:
            self._remove_copy(path)

    def _remove_copy(self, path: Path) -> None:
        """A copy from a bucket is as large as the state; once that is in memory the copy goes."""
        if self._scratch is not None:
            self._verified.pop(path.name, None)
            with suppress(OSError):
                path.unlink()


def _may_be_mapped(path: Path) -> bool:
    """True if tensors may lie in the file itself: one of torch's archives, on a disk of this machine. A file
    that another machine deletes on a file server would take the process with it (SIGBUS).
    """
    with path.open("rb") as file:
        return file.read(2) == b"PK" and file_system_of(path) in _LOCAL_FILE_SYSTEMS


_LOCAL_FILE_SYSTEMS = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
)


def file_system_of(path: Path, mounts: str | None = None) -> str | None:
    """The type of the file system that holds ``path`` (``ext4``, ``nfs4``), as /proc/self/mounts lists it;
    None where there is no such list.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
        except OSError:
            return None
    real = Path(os.path.realpath(path))
    above = {real, *real.parents}
    matching = [
        (Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1])), fields[2])
        for fields in (line.split(" ") for line in mounts.splitlines())
        if len(fields) > 2
    ]
    # The deepest, and of those mounted over one another the last.
    holding = [(len(mount.parts), n, kind) for n, (mount, kind) in enumerate(matching) if mount in above]
    return max(holding)[2] if holding else None


def open_checkpoint(uri: str | os.PathLike[str] | None = None) -> ResumedCheckpoint:
    """The complete checkpoint at ``uri`` (of a run's folder: the latest), held until this process ends.

    Without a uri: the one that an evaluation job was given (``ALLABOARD_CHECKPOINT``). Raises BadInput when
    none is there.
    """
    place = os.fspath(uri or os.environ.get("ALLABOARD_CHECKPOINT") or "")
    if not place:
        raise BadInput(
            "no checkpoint to open: give its uri, or run this as the evaluation of one (ALLABOARD_CHECKPOINT)"
        )
    return ResumedCheckpoint(*_open_with_hold(place))


def open_start(uri: str) -> ResumedCheckpoint:
    """Other weights to start from: held, and at step 0 of this run. Raises BadInput when none are there."""
    return ResumedCheckpoint(*_open_with_hold(uri), resumed=False, step=0)


def _open_with_hold(uri: str) -> tuple[Store, Checkpoint]:
    """The checkpoint with a hold on it, so that retention leaves it until this process ends."""
    while True:
        store, checkpoint = checkpoint_at(uri)
        stack = ExitStack()
        stack.enter_context(
            hold_checkpoint(
                store, checkpoint.step, f"{socket.gethostname()}, process {os.getpid()}", time.time
            )
        )
        try:
            read_manifest(store, checkpoint.step)
        except StorageMissing:  # retired before the hold was seen; checkpoint_at raises if none is left
            stack.close()
            continue
        atexit.register(stack.close)
        return store, checkpoint
