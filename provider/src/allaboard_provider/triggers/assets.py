"""Triggers for the watchers of Assets: a new checkpoint, a new champion.

    Asset("digits_champion", watchers=[AssetWatcher(name="store", trigger=NewChampionTrigger("store://digits"))])

What has been told is kept in the state of the Asset, where this Airflow has one, so a triggerer that begins
anew, or another one, goes on from there. What was in the store before the first look is not new.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from allaboard.text.redaction import redact_text
from allaboard_provider import outlets

if TYPE_CHECKING:
    from allaboard.checkpoints import Checkpoint
    from allaboard.promotion.champion import Promotion

SEEN = "allaboard_seen"
"""The key of an Asset's state under which it stands what was told: ``{"uri": ..., "seen": ...}``."""
UNTIL_PERSISTED = 2.0
"""Seconds after which Airflow has written an event into its database. What was told is noted then: a
triggerer that is killed sooner tells it again, and loses none.
"""
MOST_RUNS = 2000
"""Runs of one folder of checkpoints: an Asset's state holds 64 KB."""


class StoreWatcher(BaseEventTrigger):
    """Looks at a place of a store, and fires for all that is new there.

    :param uri: ``store://name``, or any whole uri; the triggerer must see it.
    :param allaboard_conn_id: the connection that names the store; the default one need not exist.
    :param poll: seconds between two looks.

    Arguments of a newer release are kept.
    """

    def __init__(
        self,
        uri: str,
        allaboard_conn_id: str | None = "allaboard_default",
        poll: float = 30.0,
        **newer: Any,
    ) -> None:
        super().__init__()
        self.uri, self.allaboard_conn_id, self.poll, self.newer = uri, allaboard_conn_id, poll, newer
        self._trouble = ""
        self._forgets = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        # Airflow tells two watchers apart by these arguments.
        own = {"uri": self.uri, "allaboard_conn_id": self.allaboard_conn_id, "poll": self.poll}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**own, **self.newer}

    def look(self, uri: str, seen: Any) -> tuple[list[dict[str, Any]], Any]:
        """The facts about all that is new at ``uri``, and what is seen now. ``seen``: the second of these at
        an earlier look; None at the first one. Blocks. Raises AllaboardError.
        """
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        uri = await self._patiently(self._whole)
        seen = await self._patiently(partial(self._remembered, uri))
        while True:
            news, now = await self._patiently(partial(asyncio.to_thread, self.look, uri, seen))
            for facts in news:
                yield TriggerEvent(outlets.extra_of(facts))
            if now != seen:
                await asyncio.sleep(UNTIL_PERSISTED if news else 0.0)
                seen = now
                await self._patiently(partial(self._remember, uri, now))
            await self._rest()

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        """The answer of ``ask``, which is asked until it has one: nobody starts the trigger of a watcher
        again.
        """
        while True:
            try:
                answer = await ask()
            except Exception as error:
                trouble = redact_text(f"{type(error).__name__}: {error}")
                if trouble != self._trouble:
                    self.log.warning("%s cannot be watched at present: %s", self.uri, trouble)
                self._trouble = trouble
                await self._rest()
            else:
                self._trouble = ""
                return answer

    async def _rest(self) -> None:
        await asyncio.sleep(self.poll * random.uniform(0.9, 1.1))

    async def _whole(self) -> str:
        from allaboard.errors import BadInput
        from allaboard.job.site import resolve_uri
        from allaboard_provider.hooks.allaboard import AllaboardHook

        if "://" not in self.uri and not self.uri.startswith("/"):
            raise BadInput(f"uri: {self.uri!r} is relative, and a watcher has no folder; give store://name")
        hook = await AllaboardHook.aread_fields(self.allaboard_conn_id)
        return resolve_uri(self.uri, hook.site)

    # What was told, in the state of the Asset.

    @property
    def _state(self) -> Any:
        # Airflow below 3.3 has none.
        return getattr(self, "asset_state_store", None)

    async def _remembered(self, uri: str) -> Any:
        self._forgets = self._state is None
        try:
            known = None if self._forgets else await self._state.aget(SEEN)
        except ValueError as error:  # of an accessor that does not know which Asset is meant
            self._forgets, known = True, None
            self.log.warning(
                "%s is watched for several Assets, and none of them keeps what was told: %s; give each its "
                "own poll interval to have a watcher of its own", self.uri, error,
            )  # fmt: skip
        if not isinstance(known, Mapping) or known.get("uri") != uri:
            return None
        return known.get("seen")

    async def _remember(self, uri: str, seen: Any) -> None:
        if not self._forgets:
            await self._state.aset(SEEN, {"uri": uri, "seen": seen})


class NewChampionTrigger(StoreWatcher):
    """Fires for each new champion in the store of promotions at ``uri``, rollbacks included, with ``{"uri",
    "step", "metrics", "run", "promotion", "at"}``.
    """

    def look(self, uri: str, seen: Any) -> tuple[list[dict[str, Any]], Any]:
        from allaboard.promotion.champion import champion, history
        from allaboard.storage import open_store

        store = open_store(uri)
        last = champion(store)
        highest = last.number if last is not None else 0
        known = seen if isinstance(seen, int) else None
        if known is None or highest <= known:
            return [], highest if known is None else known
        new = [each for each in history(store).promotions if known < each.number <= highest]
        return [_facts_of_promotion(each) for each in reversed(new)], highest


class NewCheckpointTrigger(StoreWatcher):
    """Fires for each new complete checkpoint at ``uri``, the folder of a run, or that of all runs of a job,
    with ``{"uri", "step", "metrics", "run", "created", "fingerprint"}``. Of several that a run has saved
    between two looks it tells the newest.
    """

    def look(self, uri: str, seen: Any) -> tuple[list[dict[str, Any]], Any]:
        from allaboard.errors import BadInput
        from allaboard_provider.triggers.checkpoints import age, newest_of_runs

        there = newest_of_runs(uri)
        if len(there) > MOST_RUNS:
            raise BadInput(
                f"{uri} holds the checkpoints of {len(there)} runs, and {MOST_RUNS} can be watched; watch "
                "the folder of one run, or remove old ones"
            )
        steps = {run: checkpoint.step for run, checkpoint in there.items()}
        if not isinstance(seen, Mapping):
            return [], steps
        new = [each for run, each in there.items() if each.step > _step(seen.get(run))]
        now = {run: max(step, _step(seen.get(run))) for run, step in steps.items()}
        # A disk that is away for a while shows no runs: they are not new when it is back.
        every = {**seen, **now}
        return [_facts_of_checkpoint(each) for each in sorted(new, key=age)], (
            every if len(every) <= MOST_RUNS else now
        )


def _step(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _facts_of_promotion(promotion: Promotion) -> dict[str, Any]:
    return {
        "uri": promotion.checkpoint,
        "step": promotion.step,
        "metrics": promotion.metrics,
        "run": promotion.run,
        "promotion": promotion.number,
        "at": promotion.at,
    }


def _facts_of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "uri": checkpoint.uri,
        "step": checkpoint.step,
        "metrics": checkpoint.metrics,
        "run": checkpoint.manifest.run,
        "created": checkpoint.manifest.created,
        "fingerprint": checkpoint.manifest.fingerprint,
    }
