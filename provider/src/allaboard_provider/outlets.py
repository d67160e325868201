"""Facts that a task publishes with the Assets among its outlets: the extra of their events, and the champion
in their state.

Airflow registers one event for each Asset that a task has as an outlet when the task succeeds, whatever the
task did. It asks the operator's ``outlets`` once the work is done, so a task that made nothing new takes its
Assets off that list (`withhold`). An AssetAlias has no event of its own: the Asset that it stands for is the
folder of all checkpoints, of which there is one, and not each checkpoint, of which there are ever more.

The facts are small and hold no secret: finite numbers, and texts in which secrets are hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

CHAMPION = "champion"
"""The key of an Asset's state under which the champion in place stands."""
MOST_METRICS = 50
LONGEST_NAME = 100
LONGEST_TEXT = 2000


def extra_of(facts: Mapping[str, Any], secrets: Iterable[str] = ()) -> dict[str, Any]:
    """The extra of an event: ``facts`` without what is unknown, bounded, without ``secrets``. Of ``metrics``
    the finite numbers, nested ones by dotted names; how many more there were is in ``metrics_left_out``.
    """
    from allaboard.text.redaction import redact_texts

    numbers = dict(_numbers(facts.get("metrics") or {}))
    kept = dict(list(numbers.items())[:MOST_METRICS])
    extra = {name: value for name, value in facts.items() if name != "metrics" and _is_small(value)}
    if "metrics" in facts:
        extra["metrics"] = kept
    if len(numbers) > len(kept):
        extra["metrics_left_out"] = len(numbers) - len(kept)
    return dict(redact_texts(extra, secrets))


def _is_small(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return isinstance(value, (bool, int, float))


def _numbers(metrics: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}.")
        elif _is_finite(value) and len(path) <= LONGEST_NAME:
            yield path, value


def _is_finite(value: Any) -> bool:
    # math.isfinite raises for an int that no float can be.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e308 <= value <= 1e308


def of_checkpoint(uri: str | None, **more: Any) -> dict[str, Any]:
    """The facts about a checkpoint: ``uri``, ``step`` and ``fingerprint``, and ``more``. A checkpoint that
    cannot be read from this worker has no fingerprint.
    """
    from allaboard.checkpoints import checkpoint_at, locate
    from allaboard.errors import AllaboardError, Corrupt

    if uri is None:
        return more
    try:
        _, checkpoint = checkpoint_at(uri)
    except (AllaboardError, Corrupt, OSError):
        return {"uri": uri, "step": locate(uri)[1], **more}
    return {"uri": uri, "step": checkpoint.step, "fingerprint": checkpoint.manifest.fingerprint, **more}


def announce(operator: Any, context: Any, extra: Mapping[str, Any], folder: str | None) -> None:
    """Give the events of the operator's outlets this extra. ``folder``: the place that an alias is for."""
    from airflow.sdk import Asset, AssetAlias

    events = context.get("outlet_events")
    if events is None:
        return
    # Airflow gives it to the event itself, where it knows partitions, and not to what a template reads.
    if partition := context.get("partition_key"):
        extra = {**extra, "partition_key": str(partition)[:LONGEST_TEXT]}
    for outlet in operator.outlets:
        if isinstance(outlet, AssetAlias):
            if folder is not None:
                uri = asset_uri(folder)
                events[outlet].add(Asset(name=uri, uri=uri), extra=dict(extra))
        elif isinstance(outlet, Asset):
            # Beside what the author's own hooks have put there.
            events[outlet].extra = {**events[outlet].extra, **extra}


def withhold(operator: Any) -> None:
    """Let no Asset among the operator's outlets have an event from this try."""
    from airflow.sdk import AssetAlias

    operator.outlets = [outlet for outlet in operator.outlets if isinstance(outlet, AssetAlias)]


def remember(operator: Any, context: Any, champion: Mapping[str, Any]) -> None:
    """Put the champion in place into the state of the operator's Assets, where this Airflow keeps such."""
    from airflow.sdk import Asset

    states = context.get("asset_state_store")
    if states is None:
        return
    for outlet in operator.outlets:
        if isinstance(outlet, Asset):
            try:
                states[outlet].set(CHAMPION, dict(champion))
            except Exception as error:  # the promotion itself stands
                operator.log.warning("the state of the asset %s was not written: %s", outlet.name, error)


def folder_of(uri: str | None) -> str | None:
    """The folder in which checkpoints of all runs are: ``<folder>/<run>/step-<12 digits>``."""
    from allaboard.checkpoints import step_of

    if uri is None:
        return None
    above, _, last = uri.rstrip("/").rpartition("/")
    return above.rpartition("/")[0] or above if step_of(last) is not None else uri


def asset_uri(place: str) -> str:
    """The uri of an Asset for a place of ours, whose paths of a disk have no scheme."""
    return place if "://" in place else f"file://{quote(place)}"
