"""What `make demo` runs: the DAG of `retrain_digits.py`, in an Airflow of its own, as a real DAG run.

    make demo ARGS="--epochs 2"       a shorter training
    make demo-cluster                 the same DAG on a Kubernetes cluster of this machine (`demo_cluster.py`)

Everything that it makes is in one folder, `.allaboard/demo`, and the end says where in it. The second time
there is a champion, so only a better model is promoted. Ctrl-C ends it, with the training and Airflow.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from own_airflow import ApiError, OwnAirflow
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import AllaboardError
from allaboard.promotion.champion import History, Promotion, history
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard.storage import open_store
from allaboard.text.units import show_bytes, show_seconds

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".allaboard" / "demo"
STORE, HOME = FOLDER / "store", FOLDER / "home"
DAG = "retrain_digits"
STEPS = {
    "prepare": "make tar shards of the handwritten digits that ship with scikit-learn",
    "train": "a small convolutional net, DistributedDataParallel, 1 master + 1 worker: two real processes",
    "collect": "copy the best checkpoint to where models are kept, verified",
    "evaluate": "read digits that it has never seen",
    "promote": "make it the champion, if it is good enough and better than the present one",
}
ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
LIMIT = 900.0

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Place:
    """Where the demo keeps what it makes, and where the DAG's runs live. ``environ``: what Airflow is told
    of it; ``options``: what a command line needs to find the runs; ``look``: what to try next there.
    """

    folder: Path
    store: str
    environ: Mapping[str, str]
    backend: Callable[[], Any]
    options: str = ""
    look: Mapping[str, str] = field(default_factory=dict)

    @property
    def airflow(self) -> Path:
        return self.folder / "airflow"

    def at(self, uri: str) -> str:
        """A place in the store, as it is typed from here."""
        return uri if "://" in uri else near(Path(uri))


def this_machine() -> Place:
    environ = {"ALLABOARD_HOME": str(HOME), "ALLABOARD_STORE": str(STORE)}
    return Place(FOLDER, str(STORE), environ, LocalBackend)


@dataclass
class Step:
    """One task of the DAG run, as the reader sees it."""

    name: str
    state: str = ""
    began: float | None = None
    ended: float | None = None
    note: str = ""
    training: Observation | None = None

    def take(self, state: str, now: float) -> bool:
        """Its state now; true when that is news."""
        news, self.state = state != self.state, state
        if self.began is None and state in ("running", "deferred", *ENDED):
            self.began = now
        if self.ended is None and state in ENDED:
            self.ended = now
        return news

    def took(self, now: float) -> str:
        return "" if self.began is None else show_seconds((self.ended or now) - self.began)


@dataclass
class Show:
    """What is on the screen: on a terminal drawn anew, elsewhere a line for each piece of news."""

    steps: dict[str, Step] = field(default_factory=lambda: {name: Step(name) for name in STEPS})

    def __rich__(self) -> Table:
        now = time.time()
        table = Table.grid(padding=(0, 2))
        for step in self.steps.values():
            table.add_row(self._mark(step), f"[bold]{step.name}[/]", step.took(now), self._words(step))
        return table

    def _mark(self, step: Step) -> Any:
        if step.state == "success":
            return "[green]✓[/]"
        if step.state in ENDED:
            return "[red]✗[/]"
        return Spinner("dots", style="cyan") if step.began is not None else "[dim]·[/]"

    def _words(self, step: Step) -> Any:
        seen = step.training
        if (
            seen is not None
            and step.state not in ENDED
            and seen.progress.step is not None
            and seen.progress.total
        ):
            bar = Table.grid(padding=(0, 1))
            loss = seen.progress.metrics.get("loss")
            progress = f"step {seen.progress.step}/{seen.progress.total}" + (
                f", loss {loss:.3f}" if loss is not None else ""
            )
            bar.add_row(ProgressBar(seen.progress.total, seen.progress.step, width=30), progress)
            return bar
        if seen is not None and step.state not in ENDED:
            return f"[dim]{state_of(seen)}: {STEPS[step.name]}[/]"
        return escape(step.note) if step.note else f"[dim]{STEPS[step.name]}[/]"

    def line(self, step: Step) -> str:
        """One line for a log."""
        seen = step.training
        if step.state not in ENDED and seen is not None and seen.progress.step is not None:
            loss = seen.progress.metrics.get("loss")
            at = f"step {seen.progress.step}/{seen.progress.total}"
            return f"{step.name}: {at}" + (f", loss {loss:.3f}" if loss is not None else "")
        took = f" after {step.took(time.time())}" if step.state in ENDED else ""
        return f"{step.name}: {step.state}{took}{': ' + step.note if step.note else ''}"


def main(epochs: int | None, place: Place) -> int:
    began = time.monotonic()
    place.folder.mkdir(parents=True, exist_ok=True)
    alone = (place.folder / "lock").open("w")  # held until this process ends
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        console.print(f"[red]✗[/] another demo runs in {near(place.folder)} just now; wait for its end")
        return 2
    os.environ |= place.environ
    before = history(open_store(f"{place.store}/digits"))
    introduce(before.champion)
    with own_airflow(place) as airflow:
        run = f"demo-{time.strftime('%Y-%m-%dT%H:%M:%S')}"
        conf = {} if epochs is None else {"epochs": epochs}
        begin(airflow, run, conf)
        show = Show()
        try:
            ok = follow(airflow, run, show, place)
        except KeyboardInterrupt:
            give_up(airflow, run, place)
            raise
        results = {name: xcom(airflow, run, name) for name in STEPS}
    if not ok:
        return failed(show, run, place)
    after = history(open_store(f"{place.store}/digits"))
    ending(before, after, results, run, time.monotonic() - began, place)
    return 0


def introduce(champion: Promotion | None) -> None:
    console.print("\n[bold]Is tonight's model better than the one in production?[/]")
    if champion is None:
        console.print("[dim]There is no champion yet, so the first good model becomes it.[/]\n")
    else:
        accuracy = champion.metrics.get("accuracy", float("nan"))
        console.print(f"[dim]The champion is number {champion.number}, accuracy {accuracy:.4f}.[/]\n")


def own_airflow(place: Place) -> OwnAirflow:
    """An Airflow whose DAGs folder holds this example alone."""
    dags = place.airflow / "dags"
    dags.mkdir(parents=True, exist_ok=True)
    for name in ("retrain_digits.py", "digits"):
        link = dags / name
        if not link.is_symlink():
            link.symlink_to(HERE / name)
    settings = {"AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO", **place.environ}
    return StartingAirflow(place.airflow, dags, settings)


class StartingAirflow(OwnAirflow):
    """Says on the terminal that it starts."""

    def __enter__(self) -> OwnAirflow:
        began = time.monotonic()
        fresh = not (self.home / "airflow.db").exists()
        words = "an Airflow of its own starts" + (" (the first time it makes its database)" if fresh else "")
        with console.status(f"{words}: scheduler, DAG processor, triggerer, API server"):
            started = super().__enter__()
        console.print(
            f"[green]✓[/] Airflow is ready after {show_seconds(time.monotonic() - began)}: {self.url}"
        )
        console.print(f"  [dim]its own words: {near(self.log)}[/]\n")
        return started


def begin(airflow: OwnAirflow, run: str, conf: Mapping[str, Any]) -> None:
    """Start the DAG run as soon as the DAG is known."""
    end = time.monotonic() + 120
    while True:
        try:
            airflow.api("PATCH", f"/dags/{DAG}", {"is_paused": False})
            airflow.api(
                "POST", f"/dags/{DAG}/dagRuns", {"dag_run_id": run, "logical_date": None, "conf": conf}
            )
            return
        except ApiError as error:
            if error.status != 404 or time.monotonic() > end:
                raise
        time.sleep(0.5)


def give_up(airflow: OwnAirflow, run: str, place: Place) -> None:
    """Ctrl-C: a person fails the DAG run, and its training ends with it."""
    console.print("\n[yellow]The demo ends here, and the training with it ...[/]")
    with suppress(ApiError, OSError, KeyboardInterrupt):
        airflow.api("PATCH", f"/dags/{DAG}/dagRuns/{run}", {"state": "failed"})
        end = time.monotonic() + 40  # members have 30 s of grace
        while any(not state_of(seen).is_final for seen in place.backend().list()) and time.monotonic() < end:
            time.sleep(0.2)


def follow(airflow: OwnAirflow, run: str, show: Show, place: Place) -> bool:
    """Until the DAG run has ended; whether it succeeded."""
    if console.is_terminal:
        with Live(show, console=console, refresh_per_second=8):
            ended = watch(airflow, run, show, lambda step: None, place)
            return all(step.state == "success" for step in ended)
    return all(
        step.state == "success"
        for step in watch(airflow, run, show, lambda step: console.print(show.line(step)), place)
    )


def watch(
    airflow: OwnAirflow, run: str, show: Show, log: Callable[[Step], None], place: Place
) -> Iterator[Step]:
    """The steps, once all have ended."""
    backend, logged_at, end = place.backend(), 0.0, time.monotonic() + LIMIT
    while time.monotonic() < end:
        states = airflow.api("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances")["task_instances"]
        for task in states:
            step = show.steps[task["task_id"]]
            fresh = step.take(task["state"] or "", time.time())
            if step.state in ENDED and fresh:
                step.note = (
                    result_words(step.name, xcom(airflow, run, step.name))
                    if step.state == "success"
                    else step.state
                )
            if step.name in ("train", "evaluate") and step.state in ("running", "deferred"):
                step.training = training_of(backend, airflow, run, step) or step.training
            if fresh and step.state in ("running", *ENDED):
                log(step)
            elif moves(step) and time.monotonic() - logged_at > 5:
                logged_at = time.monotonic()
                log(step)
        ended = airflow.api("GET", f"/dags/{DAG}/dagRuns/{run}")["state"] in ("success", "failed")
        if ended:
            break
        time.sleep(0.4)
    yield from show.steps.values()


def moves(step: Step) -> bool:
    """Whether a training reports steps."""
    return step.state not in ENDED and step.training is not None and step.training.progress.step is not None


def training_of(backend: Any, airflow: OwnAirflow, run: str, step: Step) -> Observation | None:
    """The run of a task, as it is now; None when there is none."""
    place = None if step.training else xcom(airflow, run, step.name, "allaboard_run")
    name = step.training.run if step.training else place["run"] if place else None
    try:
        return backend.observe(name) if name else None
    except AllaboardError:
        return None


def xcom(airflow: OwnAirflow, run: str, task: str, key: str = "return_value") -> Any:
    """The XCom of a task; None when there is none yet."""
    try:
        value = airflow.api("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances/{task}/xcomEntries/{key}")[
            "value"
        ]
    except ApiError:
        return None
    return json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value


def result_words(step: str, result: Any) -> str:
    """The result of a step, in a few words."""
    if not isinstance(result, Mapping):
        return ""
    match step:
        case "prepare":
            return f"{result['samples']} samples in {result['shards']} shards, {show_bytes(result['bytes'])}"
        case "train":
            loss = result["metrics"].get("val_loss")
            words = f"{result['progress']['step']} steps, {result['restarts']} restarts"
            return words + (f", validation loss {loss:.4f}" if loss is not None else "")
        case "collect":
            return f"the best one is of step {result['step']}, {show_bytes(result['bytes'])}"
        case "evaluate":
            return (
                f"accuracy {result['metrics'].get('accuracy', float('nan')):.4f} on digits it has never seen"
            )
        case _:
            return str(result["verdict"]["reason"])


def failed(show: Show, run: str, place: Place) -> int:
    first = next((step for step in show.steps.values() if step.state != "success"), None)
    name = first.name if first is not None else "a step"
    logs = place.airflow / "logs" / f"dag_id={DAG}" / f"run_id={run}" / f"task_id={name}"
    console.print(f"\n[bold red]✗ {name} did not succeed.[/] Why: {near(logs)}")
    return 1


def ending(
    before: History, after: History, results: Mapping[str, Any], run: str, seconds: float, place: Place
) -> None:
    """Print the result, where everything is, and what to try next."""
    console.rule(style="green")
    console.print(verdict(before.champion, after.champion, results["promote"]["verdict"]["reason"]))
    console.print(f"[dim]All of it took {show_seconds(seconds)}.[/]\n")
    train = results["train"]
    command = near(Path(sys.executable).with_name("allaboard"))
    if not place.options:
        command = f"ALLABOARD_HOME={shlex.quote(near(HOME))} {command}"
    places = {
        "checkpoint": place.at(results["collect"]["uri"]),
        "metrics": json.dumps(results["evaluate"]["metrics"]),
        "champions": place.at(f"{place.store}/digits/promoted"),
        "task logs": near(place.airflow / "logs" / f"dag_id={DAG}" / f"run_id={run}"),
        "training": f"{command} logs {train['run']}{place.options}",
    }
    more = {
        "again": "make demo                     the gate at work: promoted only if better",
        "look": f"{command} status {train['run']}{place.options}",
        **place.look,
        "pipeline": "make demo-kfp                 the same chain in Kubeflow Pipelines",
        "yours": "dags_examples/retrain_digits.py is the DAG, dags_examples/digits/train.py the training",
    }
    for title, rows in (("Where things are", places), ("What to try next", more)):
        console.print(f"[bold]{title}[/]")
        for name, words in rows.items():
            console.print(f"  [cyan]{name:11}[/]{escape(words)}")
        console.print()


def verdict(before: Promotion | None, after: Promotion | None, reason: str) -> str:
    """The decision of the gate."""
    if after is None:
        return f"[bold green]✓ The gate stayed shut:[/] [bold]there is no champion yet[/]; {escape(reason)}"
    accuracy = after.metrics.get("accuracy", float("nan"))
    which = f"champion number {after.number}, accuracy {accuracy:.4f}"
    if before is None or after.number > before.number:
        return f"[bold green]✓ Promoted:[/] [bold]{which}[/]"
    shut = "[bold green]✓ The gate stayed shut:[/]"
    return f"{shut} [bold]it stays {which}[/]; a model that is not better is not promoted"


def near(path: Path) -> str:
    """A path as it is typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, help="how often the data is gone through (16)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(parser.parse_args().epochs, this_machine()))
    except KeyboardInterrupt:
        sys.exit(130)
