"""What was read of the logs of an attempt, kept beside its record."""

from __future__ import annotations

import base64
import random
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.logs.archive import (
    ROOM,
    _is_late,
    lost_tries,
    merge_tries,
    pack_tries,
    unpack_tries,
    without_doubles,
)
from allaboard.backends.kubernetes.logs.cache import AttemptLogs, KeptTry
from allaboard.backends.kubernetes.logs.parsing import SECOND, Stamped
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.backends.kubernetes.observe.observation import Memory
from allaboard.checking.job import require_valid
from allaboard.engines import engine_of
from allaboard.runs.layout import Layout, lay_out
from allaboard.runs.observation import MemberSeen
from allaboard.testing import a_job


def a_try(
    restart: int = 0, uid: str = "u", member: str = "master-0", begun: float | None = 100.0
) -> ContainerRun:
    id = f"containerd://{uid}-{restart}"
    return ContainerRun(id, "p", uid, "pytorch", False, member, 0, restart, False, False, True, begun, code=1)


def kept(one: ContainerRun, *texts: str, **more: Any) -> KeptTry:
    lines = deque(Stamped(int(100 * SECOND) + n, text) for n, text in enumerate(texts))
    return KeptTry(one, lines, sum(len(text) + 1 for text in texts), **more)


def body(tries: list[KeptTry]) -> dict[str, Any]:
    return {"binaryData": {"tries": base64.b64encode(pack_tries(tries)).decode()}}


def test_what_is_kept_is_read_back_as_it_was() -> None:
    tries = [
        kept(a_try(0), "ä", "b", whole=True),
        kept(a_try(1), "c", cut=True),
        kept(a_try(2), from_status=True),
    ]
    assert [*unpack_tries(body(tries))] == tries
    shelf = AttemptLogs()
    shelf.restore(tries)
    assert shelf.tries() == tries
    shelf.restore([kept(a_try(0), "another")])
    assert [line.text for line in shelf.tries()[0].lines] == ["ä", "b"], "what one has read is one's own"


def test_what_is_damaged_is_nothing() -> None:
    for data in (
        {},
        {"binaryData": {"tries": "!"}},
        {"binaryData": {"tries": base64.b64encode(b"x").decode()}},
    ):
        assert [*unpack_tries(data)] == []


@pytest.mark.parametrize("count", [1, 40, pytest.param(3000, marks=pytest.mark.thorough)])
def test_however_much_was_written_it_fits(count: int) -> None:
    chance = random.Random(1)
    texts = [chance.randbytes(400).hex() for _ in range(64)]
    data = pack_tries([kept(a_try(n), *texts, whole=True) for n in range(count)])
    found = [*unpack_tries({"binaryData": {"tries": base64.b64encode(data).decode()}})]
    assert len(data) <= ROOM and found
    for one in found:
        assert one.lines[-1].text == texts[-1][-len(one.lines[-1].text) :], "the end of each"
        assert one.cut is (len(one.lines) < len(texts))


def test_each_try_is_kept_as_it_is_known_best() -> None:
    told, whole = kept(a_try(), "from its status", from_status=True), kept(a_try(), "a", "b", whole=True)
    assert merge_tries([told, whole]) == merge_tries([whole, told]) == [whole]
    assert merge_tries([kept(a_try(), "a"), kept(a_try(), "a", "b")]) == [kept(a_try(), "a", "b")]


def test_what_was_saved_of_a_pod_that_was_gone_is_kept_where_nobody_knows_better() -> None:
    unseen = kept(replace(a_try(0, uid=""), id="p@1"), "a")
    assert [*without_doubles([kept(a_try(3), "a", "b"), unseen])] == [kept(a_try(3), "a", "b")]
    for others in ([], [kept(a_try(3), "b")], [kept(a_try(3, member="worker-0"), "a")]):
        assert [*without_doubles([*others, unseen])] == [*others, unseen]


def test_what_an_operator_made_after_the_end_is_none_of_its_members() -> None:
    known, unknown = Memory(pods={"master-0": {"u": 0}}), Memory()
    assert _is_late(a_try(begun=101.0), known, 100.0) and _is_late(a_try(begun=100.0), unknown, 100.0)
    assert not _is_late(a_try(begun=100.0), known, 100.0) and not _is_late(a_try(begun=99.0), unknown, 100.0)
    assert not _is_late(a_try(begun=None), unknown, 100.0) and not _is_late(a_try(), unknown, None)


def laid_out() -> Layout:
    job = require_valid(a_job(workers=2))
    return lay_out(job, engine_of(job), "digits-1")


def test_tries_of_which_nothing_was_read_are_named() -> None:
    layout = laid_out()
    ran = MemberSeen("master", 0, 0, "failed", restarts=2, log="ns/p")
    waited = MemberSeen("worker", 0, 1, "pending")
    memory = Memory(
        members={"master-0": ran, "worker-0": waited}, pods={"master-0": {"u": 2}, "worker-0": {"w": 0}}
    )
    missing = [*lost_tries(memory, layout, [a_try(1)], "pytorch")]
    assert [(m.instance.member, m.instance.restart, m.whole, len(m.lines)) for m in missing] == [
        ("master-0", 0, False, 0),
        ("master-0", 2, False, 0),
    ]
    assert [*lost_tries(memory, layout, [a_try(n) for n in range(3)], "pytorch")] == []
    # What was saved of a pod that nobody could look at any more may be any of them.
    assert [*lost_tries(memory, layout, [a_try(0, uid="")], "pytorch")] == []
