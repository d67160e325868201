"""The extra of events of Assets, and whether there is an event at all. A real Airflow's part is in
test_lineage_live.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias

from allaboard.checkpoints import Manifest, save
from allaboard.promotion.champion import Decision, Promotion
from allaboard.promotion.gate import Verdict
from allaboard.storage import open_store
from allaboard_provider.operators import PromoteOperator
from allaboard_provider.operators.promote import is_new
from allaboard_provider.outlets import announce, asset_uri, extra_of, folder_of, of_checkpoint
from tests.provider.building import a_context

CHAMPION, ALIAS = Asset("champion"), AssetAlias("champions")
BY = "airflow/nightly/promote"
TOKEN = "hf_" + "q7" * 17


class Events(dict[Any, Any]):
    """`context["outlet_events"]`."""

    def __missing__(self, key: Any) -> Any:
        class Event:
            extra: dict[str, Any] = {}  # noqa: RUF012
            added: list[tuple[Asset, Any]] = []  # noqa: RUF012

            def add(self, asset: Asset, extra: Any = None) -> None:
                self.added = [*self.added, (asset, extra)]

        return self.setdefault(key, Event())


class States(dict[Any, dict[str, Any]]):
    """`context["asset_state_store"]`."""

    def __missing__(self, key: Any) -> Any:
        class State(dict[str, Any]):
            def set(self, name: str, value: Any) -> None:
                self[name] = value

        return self.setdefault(key, State())


def test_the_numbers_among_the_metrics_are_told_and_nothing_else() -> None:
    metrics = {"loss": 0.1, "val": {"loss": 0.2}, "odd": math.nan, "none": None, "words": "fine", "yes": True}
    assert extra_of({"metrics": metrics})["metrics"] == {"loss": 0.1, "val.loss": 0.2}
    assert extra_of({"metrics": {"large": 10**400, "x" * 101: 1.0}})["metrics"] == {}


def test_an_extra_is_bounded() -> None:
    told = extra_of({"uri": "x" * 2001, "run": "a", "metrics": {f"m{n}": n for n in range(60)}})
    assert (len(told["metrics"]), told["metrics_left_out"]) == (50, 10)
    assert "uri" not in told and told["run"] == "a"


def test_an_extra_holds_no_secret() -> None:
    told = extra_of({"uri": "s3://key:hunter22@bucket/models", "run": "a-sesame-1", "step": 3}, ["sesame"])
    assert "hunter22" not in told["uri"] and "sesame" not in told["run"] and told["step"] == 3


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("/models/digits-1/step-000000000003", "/models"),
        ("s3://bucket/models/digits-1/step-000000000003/", "s3://bucket/models"),
        ("s3://bucket/shards", "s3://bucket/shards"),
        (None, None),
    ],
)
def test_the_folder_of_all_runs_is_that_above_a_run(uri: str | None, folder: str | None) -> None:
    assert folder_of(uri) == folder


def test_a_path_becomes_a_uri() -> None:
    assert asset_uri("/a folder/x") == "file:///a%20folder/x"
    assert asset_uri("s3://bucket/x") == "s3://bucket/x"


def test_a_checkpoint_that_cannot_be_read_has_a_step_and_no_fingerprint(tmp_path: Path) -> None:
    uri = str(tmp_path / "gone" / "step-000000000003")
    assert of_checkpoint(uri, run="a") == {"uri": uri, "step": 3, "run": "a"}


def saved(folder: Path, accuracy: float, data: bytes = b"x") -> str:
    manifest = Manifest(step=3, run=folder.name, metrics={"accuracy": accuracy})
    return save(open_store(folder), manifest, {"state": data}).uri


def promoted(checkpoint: str, store: Path, *outlets: Any) -> tuple[PromoteOperator, Events, States]:
    operator = PromoteOperator(
        task_id="promote", checkpoint=checkpoint, store=str(store), metric="accuracy", outlets=[*outlets]
    )
    events, states = Events(), States()
    operator.execute({**a_context(), "outlet_events": events, "asset_state_store": states})
    return operator, events, states


def test_a_new_champion_is_announced_and_kept_in_the_state(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "run-1", 0.9)
    operator, events, states = promoted(checkpoint, tmp_path / "store", CHAMPION, ALIAS)
    told = events[CHAMPION].extra
    assert (told["uri"], told["promotion"], told["metrics"]) == (checkpoint, 1, {"accuracy": 0.9})
    assert told["fingerprint"] == of_checkpoint(checkpoint)["fingerprint"]
    ((asset, extra),) = events[ALIAS].added
    assert (asset.uri, extra) == (f"file://{tmp_path}/store", told)
    assert states[CHAMPION] == {"champion": told}
    assert operator.outlets == [CHAMPION, ALIAS]


def test_a_gate_that_stays_shut_leaves_no_outlet_and_the_champion_in_the_state(tmp_path: Path) -> None:
    """Airflow asks for the outlets after the work, and gives each Asset among them an event."""
    first = saved(tmp_path / "run-1", 0.9)
    promoted(first, tmp_path / "store")
    operator, events, states = promoted(saved(tmp_path / "run-2", 0.5), tmp_path / "store", CHAMPION, ALIAS)
    assert operator.outlets == [ALIAS] and not events
    assert states[CHAMPION]["champion"]["uri"] == first


def test_no_champion_at_all_leaves_no_outlet_and_no_state(tmp_path: Path) -> None:
    operator = PromoteOperator(
        task_id="promote", checkpoint=saved(tmp_path / "run-1", 0.5), store=str(tmp_path / "store"),
        thresholds=["accuracy>=0.9"], outlets=[CHAMPION],
    )  # fmt: skip
    states = States()
    operator.execute({**a_context(), "outlet_events": Events(), "asset_state_store": states})
    assert operator.outlets == [] and not states


def test_a_state_that_cannot_be_written_does_not_undo_a_promotion(tmp_path: Path) -> None:
    class Broken(States):
        def __missing__(self, key: Any) -> Any:
            raise RuntimeError("no such asset")

    operator = PromoteOperator(
        task_id="promote", checkpoint=saved(tmp_path / "run-1", 0.9), store=str(tmp_path / "store"),
        outlets=[CHAMPION],
    )  # fmt: skip
    events = Events()
    context = {**a_context(), "outlet_events": events, "asset_state_store": Broken()}
    assert operator.execute(context)["promoted"] and events[CHAMPION].extra["promotion"] == 1


MADE = Promotion(1, "/a/step-000000000001", by=BY, at="2026-11-21T12:00:00.250Z")
AT = 1795262400.25
NEW = Decision(Verdict(True), MADE, MADE)
STANDING = replace(NEW, standing=True)


@pytest.mark.parametrize(
    ("decision", "by", "since", "new"),
    [
        (NEW, "ann", None, True),
        (Decision(Verdict(False), None, MADE), BY, AT - 1, False),
        (STANDING, BY, AT - 1, True),  # an earlier try of this DAG run made it, and died
        (STANDING, BY, AT + 1, False),
        (STANDING, "airflow/other/promote", AT - 1, False),
        (STANDING, BY, None, False),
        (replace(STANDING, promotion=replace(MADE, at="yesterday")), BY, AT - 1, False),
        (replace(STANDING, promotion=replace(MADE, at=None)), BY, AT - 1, False),
    ],
)
def test_only_a_champion_that_this_dag_run_made_is_new(
    decision: Decision, by: str, since: float | None, new: bool
) -> None:
    assert is_new(decision, by, since) is new


@pytest.mark.parametrize("context", [{"partition_key": "2026-01-31|eu"}, {"partition_key": None}, {}])
def test_an_event_of_a_partition_says_which(context: dict[str, Any]) -> None:
    events = Events()
    task = SimpleNamespace(outlets=[CHAMPION, ALIAS])
    announce(task, {"outlet_events": events, **context}, {"step": 3}, "s3://b/folder")
    (_, of_alias) = events[ALIAS].added[0]
    for extra in (events[CHAMPION].extra, of_alias):
        assert extra.get("partition_key") == context.get("partition_key") and extra["step"] == 3
