"""What a real Airflow makes of what our tasks tell: events of Assets and the DAGs that wait for them,
metrics, lineage, a trace.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from allaboard.checkpoints import Manifest, checkpoint_at, save
from allaboard.promotion.champion import promote
from allaboard.storage import open_store
from allaboard_provider.triggers.assets import SEEN
from dags_examples.own_airflow import ApiError
from tests.provider.listening import Collector, Statsd, collector, statsd
from tests.provider.live import Live, Run, until

pytestmark = [
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]
DAGS = Path(__file__).resolve().parent / "lineage"
CHAIN = ("prepare", "train", "collect", "promote")
SECRET = "hf_" + "q7" * 17


class World:
    """An Airflow, and everybody to whom it tells something."""

    def __init__(self, live: Live, folder: Path, metrics: Statsd, traces: Collector) -> None:
        self.live, self.folder, self.metrics, self.traces = live, folder, metrics, traces

    def succeeds(self, dag: str, *tasks: str, **params: Any) -> Run:
        run = self.live.start(dag, **params)
        for task in tasks:
            run.at(task).wait_task("success")
        return run

    def events(self, run: Run) -> list[dict[str, Any]]:
        """The events of Assets that a DAG run has made."""
        found = until("Airflow tells the events", lambda: self._events(run.dag))
        return [event for event in found["asset_events"] if event["source_run_id"] == run.name]

    def _events(self, dag: str) -> Any:
        try:
            return self.live.airflow.api("GET", f"/assets/events?source_dag_id={dag}&limit=100")
        except ApiError as error:
            # Airflow 3.3.2 does not answer while a DAG run that an event has made has not begun.
            if error.status == 500:
                return None
            raise

    def extra(self, run: Run, asset: str) -> dict[str, Any]:
        (event,) = (event for event in self.events(run) if event["name"] == asset)
        return dict(event["extra"])

    def reactions(self) -> list[dict[str, Any]]:
        file = self.folder / "reacts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def lineage(self, run: Run, task: str, kind: str) -> dict[str, Any]:
        """The last event of OpenLineage of this kind about a task."""

        def look() -> dict[str, Any] | None:
            lines = (self.folder / "lineage.json").read_text().splitlines()
            events = [json.loads(line) for line in lines]
            about = [
                event
                for event in events
                if event["eventType"] == kind
                and event["job"]["name"] == f"{run.dag}.{task}"
                and event["run"]["facets"]["airflow"]["dagRun"]["run_id"] == run.name
            ]
            return about[-1] if about else None

        return until(f"OpenLineage has {kind} of {task}", look)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with ExitStack() as open_:
        metrics, traces = open_.enter_context(statsd()), open_.enter_context(collector())
        transport = {"type": "file", "log_file_path": str(folder / "lineage.json"), "append": True}
        live = Live(
            folder,
            DAGS,
            NOTES=str(folder),
            AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT="60",
            AIRFLOW__METRICS__STATSD_ON="True",
            AIRFLOW__METRICS__STATSD_PORT=str(metrics.port),
            AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED="True",
            AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps(transport),
            AIRFLOW__TRACES__OTEL_ON="True",
            OTEL_TRACES_EXPORTER="otlp_proto_http",
            OTEL_EXPORTER_OTLP_ENDPOINT=traces.url,
        )
        open_.callback(live.stop)
        live.airflow.start()
        live.airflow.wait_until_ready(400)
        yield World(live, folder, metrics, traces)


@pytest.fixture(scope="module")
def first(world: World) -> Run:
    """The chain, and a first champion."""
    return world.succeeds("chain", *CHAIN, accuracy=0.8)


@pytest.fixture(scope="module")
def worse(world: World, first: Run) -> Run:
    """The chain again, and a candidate that does not pass the gate."""
    return world.succeeds("chain", *CHAIN, accuracy=0.6)


def test_events_of_a_deferred_training_carry_what_came_of_it(world: World, first: Run) -> None:
    assert "Pausing task as DEFERRED" in first.at("train").log()
    told = world.extra(first, "weights")
    uri = first.at("train").xcom()["checkpoints"]["latest"]
    assert told == {
        "uri": uri,
        "step": 10,
        "fingerprint": checkpoint_at(uri)[1].manifest.fingerprint,
        "metrics": {"accuracy": 0.8},
        "run": first.record().run,
    }


def test_events_of_a_training_that_does_not_defer_carry_the_same(world: World, first: Run) -> None:
    run = world.succeeds("waits_here", "train", accuracy=0.7)
    told = world.extra(run, "weights")
    assert (told["step"], told["metrics"]) == (10, {"accuracy": 0.7})
    assert told["fingerprint"].startswith("parts:v1:") and "DEFERRED" not in run.log()


def test_an_alias_stands_for_the_folder_of_all_runs(world: World, first: Run) -> None:
    event = next(event for event in world.events(first) if event["name"].startswith("file://"))
    told = event["extra"]
    assert event["uri"] == f"file://{told['uri'].rsplit('/', 2)[0]}" and told["step"] == 10


def test_a_collected_copy_has_the_fingerprint_of_its_source(world: World, first: Run) -> None:
    kept, weights = world.extra(first, "kept"), world.extra(first, "weights")
    assert kept["fingerprint"] == weights["fingerprint"] and kept["uri"] != weights["uri"]
    assert kept["metrics"] == {"loss": 0.1}
    assert world.extra(first, "shards")["samples"] == 1


def test_a_dag_that_waits_for_a_champion_runs_with_it(world: World, first: Run, worse: Run) -> None:
    """Once: the second candidate is no champion, and nobody hears of it."""
    until("the champion has a reaction", world.reactions)
    (heard,) = world.reactions()
    (told,) = heard["extras"]
    assert told["promotion"] == 1 and told["metrics"] == {"accuracy": 0.8}
    assert told["fingerprint"] == world.extra(first, "kept")["fingerprint"]
    assert heard["state"] == told
    # The event's extra is enough to work with it.
    runs = world.live.airflow.api("GET", "/dags/reacts/dagRuns")["dag_runs"]
    judge = Run(world.live, "reacts", runs[0]["dag_run_id"], "judge")
    judge.wait_task("success")
    assert judge.xcom()["metrics"]["said"] == "0.8 10"
    # The second chain has made everything else, and an event of each of it.
    assert worse.at("promote").xcom()["promoted"] is False
    assert {"shards", "weights", "kept"} <= {event["name"] for event in world.events(worse)}
    assert [event["name"] for event in world.events(worse) if event["name"] == "champion"] == []


def test_promoting_the_champion_again_is_no_news(world: World, first: Run, worse: Run) -> None:
    checkpoint = first.at("collect").xcom()["uri"]
    metrics = first.at("promote").xcom()["promotion"]["metrics"]
    again = world.succeeds("again", "promote", checkpoint=checkpoint, metrics=metrics)
    assert again.at("promote").xcom()["promoted"] is True
    assert world.events(again) == [] and len(world.reactions()) == 1


def test_a_champion_whose_worker_died_before_airflow_heard_is_announced(world: World, first: Run) -> None:
    """The first try makes the record, and is killed; the second one finds it, and tells."""
    checkpoint = first.at("train").xcom()["checkpoints"]["latest"]
    run = world.succeeds("dies", "promote", checkpoint=checkpoint)
    assert run.at("promote").task()["try_number"] == 2
    assert world.extra(run, "other")["promotion"] == 1


def test_a_failed_training_has_no_event(world: World, first: Run) -> None:
    run = world.live.start("waits_here", accuracy=-1)
    run.wait_task("failed")
    assert world.events(run) == []


def test_no_event_tells_a_secret(world: World, first: Run) -> None:
    assert SECRET not in json.dumps(world.events(first))
    assert SECRET not in (world.folder / "lineage.json").read_text()


def test_metrics_go_where_airflow_sends_its_own(world: World, first: Run) -> None:
    tags = {"dag_id": "chain", "task_id": "train", "job": "chain"}
    until("the metrics have come", lambda: world.metrics.of("goodput"))
    assert {**tags, "state": "succeeded"} in world.metrics.tags("runs")
    assert "1|c" in world.metrics.of("runs") and all(
        0 <= float(v.partition("|")[0]) <= 1 for v in world.metrics.of("goodput")
    )
    assert tags in world.metrics.tags("queue")
    assert all(float(value.partition("|")[0]) >= 0 for value in world.metrics.of("queue"))
    assert all(value.endswith("|ms") for value in world.metrics.of("training"))


def test_openlineage_hears_of_inputs_outputs_and_metrics(world: World, first: Run) -> None:
    train = world.lineage(first, "train", "COMPLETE")
    (shards,) = train["inputs"]
    (weights,) = train["outputs"]
    told = world.extra(first, "weights")
    assert shards["namespace"] == "file" and shards["name"].endswith("/store/shards")
    assert (weights["namespace"], weights["name"]) == ("file", told["uri"])
    assert weights["facets"]["version"]["datasetVersion"] == told["fingerprint"]
    facet = train["run"]["facets"]["allaboard"]
    assert (facet["state"], facet["metrics"], facet["step"]) == ("succeeded", {"accuracy": 0.8}, 10)
    # The next task reads what this one has made, and the last one what that has made.
    collect, promote = (world.lineage(first, task, "COMPLETE") for task in ("collect", "promote"))
    assert collect["inputs"][0]["name"] == weights["name"]
    assert promote["inputs"][0]["name"] == collect["outputs"][0]["name"]
    assert promote["outputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    made = world.lineage(first, "prepare", "COMPLETE")["outputs"][0]
    assert made["name"] == shards["name"] and made["outputFacets"]["outputStatistics"]["rowCount"] == 1


def test_openlineage_hears_why_a_training_failed(world: World, first: Run) -> None:
    run = world.live.start("waits_here", accuracy=-2)
    run.wait_task("failed")
    facet = world.lineage(run, "train", "FAIL")["run"]["facets"]["allaboard"]
    assert (facet["state"], facet["code"]) == ("failed", "python_exception")


def test_one_trace_goes_from_the_dag_run_to_the_last_save(world: World, first: Run) -> None:
    def saves() -> list[Any]:
        run = first.record().run
        return [span for span in world.traces.spans if span.attributes.get("allaboard.run") == run]

    saved = until("both saves are spans", lambda: len(found := saves()) == 2 and found)
    assert [(span.name, span.attributes["step"]) for span in saved] == [
        ("checkpoint.save", 5),
        ("checkpoint.save", 10),
    ]

    def lineage_of_last_save() -> list[str]:
        """The names of the spans above it."""
        by_id = {span.id: span for span in world.traces.spans}
        names, span = [], saved[-1]
        while span.parent in by_id:
            span = by_id[span.parent]
            names.append(span.name)
        return names

    names = until("the spans above it have come", lambda: len(n := lineage_of_last_save()) > 2 and n)
    assert "worker.train" in names and names[-1].startswith("dag_run")
    assert {span.trace for span in saved} == {
        span.trace for span in world.traces.spans if span.name == names[-1]
    } & {saved[0].trace}


def test_a_watcher_tells_each_new_champion_once_whichever_triggerer_is_killed(
    world: World, tmp_path: Path
) -> None:
    """Promoted by somebody who is no task of this Airflow. It comes last: it kills the triggerer."""
    store = open_store(Path(world.live.environ["ALLABOARD_HOME"]) / "store" / "watched")
    until("the DAG is known", lambda: world.live.known("deploys"))

    def api(path: str) -> Any:
        return world.live.airflow.api("GET", path)

    def state() -> dict[str, Any]:
        (asset,) = (each for each in api("/assets?limit=100")["assets"] if each["name"] == "watched")
        kept = api(f"/assets/{asset['id']}/state-store")["asset_state_store"]
        return {each["key"]: each["value"] for each in kept}

    def seen(number: int) -> Any:
        value = state().get(SEEN)
        known = json.loads(value) if isinstance(value, str) else value
        return known and known["seen"] == number

    def champion(number: int) -> None:
        uri = tmp_path / "models" / "net-1"
        save(open_store(uri), Manifest(step=number, run="net-1", metrics={"accuracy": 0.5}), {"a": b"x"})
        assert promote(store, f"{uri}/step-{number:012d}", now=float(number), single_writer=True).promoted

    def deployed() -> list[int]:
        file = world.folder / "deploys"
        return (
            [n for line in file.read_text().splitlines() for n in json.loads(line)] if file.exists() else []
        )

    until("the watcher has looked", lambda: seen(0))
    champion(1)
    until("the first is told", lambda: deployed() == [1])
    until("that is kept", lambda: seen(1))
    world.live.replace_triggerer(signal.SIGKILL)
    champion(2)
    until("the second is told", lambda: deployed()[1:])
    until("that is kept", lambda: seen(2))
    world.live.replace_triggerer(signal.SIGTERM)
    champion(3)
    until("the third is told", lambda: deployed()[2:])
    assert deployed() == [1, 2, 3]
