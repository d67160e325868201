"""Holds: a reader delays retention for a while.

    <uri>/<run>/holds/step-000000000120-1f0c9a77e2b4.json
    {"version": 1, "step": 120, "by": "collect on ...", "expires": "2026-11-21T13:00:00.250Z"}

A hold is a small object with an expiry, so that a killed reader holds nothing for ever. A reader places its
hold first and looks for the manifest afterwards; retention that missed the hold has then either removed the
manifest already, and the reader sees that, or leaves the parts for an hour, during which it looks for holds
again.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from allaboard.checkpoints.manifest import folder_name
from allaboard.checkpoints.names import HOLDS, step_of
from allaboard.errors import StorageError, StorageMissing
from allaboard.storage.base import Store, read_small
from allaboard.text.units import from_rfc3339, rfc3339
from allaboard.text.untrusted import parse_json

FOLDER = HOLDS
VERSION = 1
#: How long a hold lasts unless it is renewed.
SECONDS = 3600.0

_NAME = re.compile(r"(step-\d{12})-[0-9a-f]+\.json")


@dataclass(frozen=True, slots=True)
class Hold:
    key: str
    step: int
    expires: float
    by: str = ""


def place_hold(
    store: Store, step: int, by: str, now: float, seconds: float = SECONDS, key: str | None = None
) -> Hold:
    """Hold a step until ``now + seconds``; with ``key`` an earlier hold is renewed. Raises StorageError."""
    key = key or f"{FOLDER}/{folder_name(step)}-{secrets.token_hex(6)}.json"
    expires = now + seconds
    body = {"version": VERSION, "step": step, "by": by, "expires": rfc3339(expires)}
    store.write(key, (json.dumps(body) + "\n").encode())
    return Hold(key, step, expires, by)


def list_holds(store: Store) -> list[Hold]:
    """Every hold in a run's folder, expired ones included. One that cannot be read holds until it is
    older than a hold lasts.
    """
    placed = []
    for entry in store.entries(FOLDER):
        match = _NAME.fullmatch(entry.key[len(FOLDER) + 1 :])
        step = step_of(match.group(1)) if match else None
        if step is not None:
            with suppress(StorageMissing):
                placed.append(_read_hold(store, entry.key, step, entry.modified))
    return placed


def _read_hold(store: Store, key: str, step: int, modified: float) -> Hold:
    try:
        body = parse_json(read_small(store, key), spelling=False)
        return Hold(key, step, from_rfc3339(str(body["expires"])) or 0.0, str(body.get("by", "")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return Hold(key, step, modified + SECONDS)


@contextmanager
def hold_checkpoint(
    store: Store, step: int, by: str, clock: Callable[[], float], seconds: float = SECONDS
) -> Iterator[Callable[[], None]]:
    """Hold a step while the block runs. What is yielded is to be called now and then: it renews the hold in
    time.

    Where this reader may not write, it reads without a hold: then the hour that parts stay is its time.
    """
    hold: list[Hold] = []

    def renew() -> None:
        if hold and hold[0].expires - clock() < seconds / 2:
            with suppress(StorageError):
                hold[0] = place_hold(store, step, by, clock(), seconds, hold[0].key)

    with suppress(StorageError):
        hold.append(place_hold(store, step, by, clock(), seconds))
    try:
        yield renew
    finally:
        with suppress(StorageError):
            store.delete(placed.key for placed in hold)
