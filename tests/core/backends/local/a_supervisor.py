"""Run by the tests: a supervisor around a real keeper. Orders come in and news go out as JSON lines."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys

from allaboard.backends.local.supervisor.reaper import Keeper


def say(word: str, **more: object) -> None:
    print(json.dumps({"word": word, **more}), flush=True)


def obey(keeper: Keeper, order: dict) -> None:
    do = order.pop("do")
    locks = [os.open(path, os.O_RDONLY) for path in order.pop("inherit", [])]
    if do == "spawn":
        keeper.spawn(**order, fds=locks)
    elif do == "hold":
        keeper.hold(locks)
    elif do == "close":
        for event in keeper.close():
            tell(event)
        say("closed")
        raise SystemExit
    else:
        getattr(keeper, do)(**order)
    for fd in locks:
        os.close(fd)


def tell(event: object) -> None:
    say(type(event).__name__, **dataclasses.asdict(event))


def main() -> None:
    keeper = Keeper.start(sys.argv[1])
    say("ready", keeper=keeper.pid)
    orders = b""
    while True:
        ready, _, _ = select.select([0, keeper], [], [])
        if keeper in ready:
            for event in keeper.read_events():
                tell(event)
            if not keeper.alive:
                survivors = keeper.on_keeper_death()
                say("keeper_died", survivors=survivors, members=keeper.members)
                keeper = Keeper.start(sys.argv[1])
                say("ready", keeper=keeper.pid)
        if 0 in ready:
            data = os.read(0, 1 << 20)
            if not data:
                return
            *lines, orders = (orders + data).split(b"\n")
            for line in lines:
                obey(keeper, json.loads(line))


if __name__ == "__main__":
    main()
