"""What all backends of one process share."""

from __future__ import annotations

import asyncio
import threading

import pytest

from allaboard.backends.kubernetes.client.process import ProcessScope


def test_a_thing_is_made_once_by_whichever_thread_comes_first() -> None:
    scope, made = ProcessScope(), []

    def make() -> list[int]:
        made.append(threading.get_ident())
        return []

    got: list[list[int]] = []
    threads = [threading.Thread(target=lambda: got.append(scope.get(list, "a", make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and all(thing is got[0] for thing in got)
    assert scope.get(list, "b", make) is not got[0]


@pytest.mark.timeout(20)
def test_what_makes_one_thing_may_ask_for_another() -> None:
    """As a hub asks for its credentials."""
    scope = ProcessScope()

    def make() -> list[dict[str, int]]:
        return [scope.get(dict, "credentials", dict)]

    assert scope.get(list, "hub", make) == [{}]

    async def in_a_loop() -> list[dict[str, int]]:
        return scope.get_in_loop(list, "hub", make)

    assert asyncio.run(in_a_loop()) == [{}]


def test_a_closed_loop_leaves_nothing_to_the_next() -> None:
    scope = ProcessScope()

    async def get() -> list[int]:
        return scope.get_in_loop(list, "hub", list)

    first = asyncio.run(get())
    first.append(1)
    assert asyncio.run(get()) == []
