"""A checkpoint that was found: where its bytes are while the script uses them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from allaboard.checkpoints import Manifest, save
from allaboard.errors import Corrupt, StorageUnreachable
from allaboard.inside import Checkpointer
from allaboard.inside.resumed_checkpoint import ResumedCheckpoint, file_system_of
from allaboard.inside.shutdown import shutdown
from allaboard.storage import open_store
from allaboard.storage.base import Store


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nobody's signal handler is left behind."""
    yield
    shutdown.uninstall()


MOUNTS = """\
overlay / overlay rw 0 0
/dev/vda /data ext4 rw 0 0
server:/export /data/shared nfs4 rw 0 0
tmpfs /my\\040disk tmpfs rw 0 0
server:/other /data/twice nfs4 rw 0 0
/dev/vdb /data/twice xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc/passwd", "overlay"),
        ("/data/run/state.pt", "ext4"),
        ("/data/shared/run/state.pt", "nfs4"),
        ("/data/shared-not/state.pt", "ext4"),
        ("/my disk/state.pt", "tmpfs"),
        ("/data/twice/state.pt", "xfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_deepest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_without_a_list_of_mounts_no_file_system_is_known() -> None:
    assert file_system_of(Path("/data"), "") is None


def test_a_loaded_state_survives_its_checkpoint_and_leaves_it_alone(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    ckpt = Checkpointer(uri=tmp_path / "run-1")
    ckpt.save(1, {"w": torch.arange(100_000)})
    found = ckpt.resume()
    assert found is not None
    state = found.load()
    state["w"][0] = 7
    again = Checkpointer(uri=tmp_path / "run-1").resume()
    assert again is not None
    assert again.load()["w"][0] == 0
    shutil.rmtree(tmp_path / "run-1")
    assert state["w"].tolist() == [7, *range(1, 100_000)]


def test_a_state_from_an_old_torch_is_loaded_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    ckpt = Checkpointer(uri=tmp_path / "run-1")
    ckpt.save(1, {"state.pt": tmp_path / "old.pt"})
    found = ckpt.resume()
    assert found is not None
    assert found.load()["w"].tolist() == [1, 1, 1]


class Bucket:
    """What a checkpoint asks of a store that is on no disk of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.breaks = False

    def local_path(self, key: str = "") -> None:
        return None

    def download(self, key: str, path: Path) -> None:
        shutil.copyfile(self.folder / key, path)
        if self.breaks:
            raise StorageUnreachable("no answer")


def test_a_copy_that_is_of_no_use_is_removed_at_once(tmp_path: Path) -> None:
    """It may be as large as the state, and the process may train on for days."""
    saved = save(open_store(tmp_path), Manifest(step=1), {"a.bin": b"x" * 1000, "b.bin": b"y" * 1000})
    bucket = Bucket(tmp_path)
    found = ResumedCheckpoint(cast(Store, bucket), saved)
    whole = found.path("a.bin")
    (tmp_path / "step-000000000001" / "b.bin").write_bytes(b"z" * 1000)
    with pytest.raises(Corrupt, match=r"part b\.bin has other bytes"):
        found.path("b.bin")
    assert [path.name for path in whole.parent.iterdir()] == ["a.bin"]
    bucket.breaks = True
    with pytest.raises(StorageUnreachable):
        found.path("b.bin")
    assert [path.name for path in whole.parent.iterdir()] == ["a.bin"]
    bucket.breaks = False
    (tmp_path / "step-000000000001" / "b.bin").write_bytes(b"y" * 1000)
    assert found.path("b.bin").read_bytes() == b"y" * 1000, "it is fetched anew"


def test_a_part_on_a_disk_that_is_corrupt_stays_where_it_is(tmp_path: Path) -> None:
    saved = save(open_store(tmp_path), Manifest(step=1), {"a.bin": b"x" * 1000})
    part = tmp_path / "step-000000000001" / "a.bin"
    part.write_bytes(b"z" * 1000)
    with pytest.raises(Corrupt):
        ResumedCheckpoint(open_store(tmp_path), saved).path()
    assert part.exists()
