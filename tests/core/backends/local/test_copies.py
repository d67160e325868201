"""When copies are made and brought back, with the real processes and a server that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from allaboard.backends.local.supervisor import adoption, copies
from allaboard.backends.local.supervisor.adoption import Adoption
from allaboard.backends.local.supervisor.copies import Copies
from allaboard.checkpoints import Manifest, latest
from allaboard.checkpoints.foreign.adopting import adopt
from allaboard.runs.layout import Layout, Saving
from allaboard.storage import open_store
from tests.core.checkpoints.foreign.test_handing import BEGAN, trainer
from tests.core.checkpoints.foreign.test_mirroring import RUN, places
from tests.core.cli.terminal import wait_for
from tests.core.s3server import Proxy, Request, S3Server, between

REFUSED = (403, "AccessDenied")


@pytest.fixture
def saving(tmp_path: Path, moto: S3Server) -> Saving:
    return Saving(uri=f"s3://{moto.make_bucket()}/{RUN}", folder=str(tmp_path / "out" / RUN))


def lead_to(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in proxy.environ.items():
        monkeypatch.setenv(name, value)


def ready_of(made: Copies) -> Callable[[], bool]:
    return lambda: made.is_ready(time.monotonic())


def test_a_start_waits_for_a_place_that_fails_and_goes_on_at_last(
    saving: Saving, moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_FIRST_PAUSE", 0.1)
    monkeypatch.setattr(copies, "_PATIENCE", 0.5)
    with between(moto, lambda _: REFUSED) as proxy:
        lead_to(proxy, monkeypatch)
        made = Copies(saving, BEGAN)
        wait_for(lambda: made.is_ready(time.monotonic()) or made.problem)
        wait_for(ready_of(made))
    assert made.problem is not None
    [(kind, reason, text)] = made.notes
    assert (kind, reason) == ("Warning", "CheckpointNotCopied") and "whether it has a newer" in text


@pytest.mark.thorough
def test_a_start_goes_on_once_the_place_answers_again(
    saving: Saving, moto: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copies, "_FIRST_PAUSE", 0.1)
    fails = threading.Event()
    fails.set()
    with between(moto, lambda _: REFUSED if fails.is_set() else None) as proxy:
        lead_to(proxy, monkeypatch)
        made = Copies(saving, BEGAN)
        wait_for(lambda: made.is_ready(time.monotonic()) or made.problem)
        assert not made.is_ready(time.monotonic())
        fails.clear()
        wait_for(ready_of(made))
    assert made.problem is None
    assert [reason for _, reason, _ in made.notes] == ["CheckpointNotCopied", "CopiesAgain"]


@pytest.mark.thorough
def test_the_end_of_a_stop_waits_within_the_grace(
    saving: Saving, moto: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server that never answers holds nobody up; the next attempt copies what is missing."""
    trainer(tmp_path / "out", 4)
    adopt(places(tmp_path / "out"), Manifest(step=0, run=RUN))
    with between(moto, lambda _: "hang") as proxy:
        lead_to(proxy, monkeypatch)
        made, began = Copies(saving, BEGAN), time.monotonic()
        assert made.finish(1.0, lambda: True) == []
    assert time.monotonic() - began < 20
    assert [reason for _, reason, _ in made.notes] == ["CheckpointNotCopied"]
    with between(moto, lambda _: None) as proxy:
        lead_to(proxy, monkeypatch)
        [report] = Copies(saving, BEGAN).finish(1.0, lambda: False)
    assert report.fields["uri"] == f"{saving.uri}/step-000000000004"
    newest = latest(open_store(saving.uri, environ=moto.environ))
    assert newest is not None and newest.step == 4


def test_a_killed_copier_is_told_and_followed_by_another(
    saving: Saving, moto: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copies, "_FIRST_PAUSE", 0.1)
    trainer(tmp_path / "out", 4)
    adopt(places(tmp_path / "out"), Manifest(step=0, run=RUN))
    made: Copies

    def kills_once(asked: Request) -> str | None:
        copier = made._copy
        if asked.count == 6 and copier is not None:
            copier.process.kill()
        return None

    with between(moto, kills_once) as proxy:
        lead_to(proxy, monkeypatch)
        made = Copies(saving, BEGAN)
        reports: list[Any] = []
        wait_for(lambda: reports.extend(made.look(time.monotonic(), has_new=False)) or reports)
    assert [reason for _, reason, _ in made.notes] == ["CheckpointNotCopied", "CopiesAgain"]
    assert "its process ended with -9" in made.notes[0][2]


def test_the_sums_of_a_checkpoint_are_made_again_when_their_process_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(adoption, "_AFTER_A_FAILURE", 0.1)
    trainer(tmp_path / "out", 4)
    layout = cast("Layout", SimpleNamespace(run=RUN, attempt=1, generation=1, total=1))
    known = Adoption(layout, Saving(uri=str(tmp_path / "out" / RUN), format="auto"), BEGAN)
    assert known.look(time.monotonic()) == []
    assert known._task is not None
    known._task.kill()
    reports: list[Any] = []
    wait_for(lambda: reports.extend(known.look(time.monotonic())) or reports)
    assert [report.fields["step"] for report in reports] == [4]
