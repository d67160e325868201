"""A log of any size in bounded memory: the first cause is found, wherever it stands."""

from __future__ import annotations

import random

import pytest

from allaboard.diagnosis import diagnose
from allaboard.diagnosis.excerpt import HEAD, LONGEST_LINE, MIDDLE, TAIL, Excerpt
from allaboard.testing import a_member, seen

CAUSE = """Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    main()
OSError: [Errno 28] No space left on device: '/out/step-40'
"""


def a_log(megabytes: int, at: float, cause: str = CAUSE) -> bytes:
    steps = "".join(f"step {n} loss {1 / (n + 1):.6f} acc 0.{n % 97}\n" for n in range(20_000))
    text = (steps * (megabytes * (1 << 20) // len(steps) + 1))[: megabytes << 20]
    cut = text.index("\n", int(len(text) * at)) + 1
    return (text[:cut] + cause + text[cut:]).encode()


def excerpt_of(data: bytes, pieces: int = 1 << 16) -> str:
    excerpt = Excerpt()
    for n in range(0, len(data), pieces):
        excerpt.feed(data[n : n + pieces])
    return excerpt.text()


@pytest.mark.parametrize("at", [0.02, 0.3, 0.5, 0.7, 0.9])
def test_a_cause_in_the_middle_of_ten_megabytes_is_found(at: float) -> None:
    text = excerpt_of(a_log(10, at))
    assert len(text) <= HEAD + MIDDLE + 2 * TAIL
    member = a_member("master-0", "failed", exit_code=1, ended=5.0)
    found = diagnose(seen("failed", members=(member,), tails={"master-0": text}))
    assert found[0].code == "disk_full", found[0].summary


@pytest.mark.parametrize("size", [0, 10, HEAD, HEAD + 1, HEAD + TAIL - 1])
def test_a_small_log_is_whole(size: int) -> None:
    data = bytes(random.Random(size).choices(b"abc \n", k=size))
    assert excerpt_of(data, 1000) == data.decode()


@pytest.mark.parametrize("pieces", [1 << 10, 1 << 16, 1 << 22])
def test_the_pieces_in_which_it_comes_change_nothing_that_tells(pieces: int) -> None:
    text = excerpt_of(a_log(3, 0.4), pieces)
    assert all(line in text for line in CAUSE.splitlines())


def test_memory_is_bounded_whatever_is_written() -> None:
    generator = random.Random(3)
    excerpt = Excerpt(head=1000, middle=2000, tail=1000)
    for _ in range(300):
        excerpt.feed(bytes(generator.choices(b"error \n0123x", k=4000)))
        excerpt.feed(b"error" + b"x" * 100_000)
    assert len(excerpt.text()) <= 1000 + 2000 + LONGEST_LINE + 2 * 1000 + 1000


@pytest.mark.parametrize("pieces", [1 << 12, 1 << 20])
def test_a_line_that_is_longer_than_what_is_read_at_a_time_hides_nothing(pieces: int) -> None:
    log = b"y" * (3 << 20) + b"\n" + CAUSE.encode() + b"z" * (3 << 20)
    assert "No space left on device" in excerpt_of(log, pieces)
