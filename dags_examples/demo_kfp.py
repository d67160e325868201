"""What `make demo-kfp` runs: the pipeline of `retrain_digits_kfp.py`, compiled, and run here by kfp.local.

    make demo-kfp ARGS="--epochs 2"       a shorter training

Everything that it makes is in one folder, `.allaboard/demo-kfp`, and the end says where in it. The second
time there is a champion, so only a better model is promoted.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from allaboard.promotion.champion import History, history
from allaboard.storage import open_store
from allaboard.text.units import show_bytes, show_seconds

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".allaboard" / "demo-kfp"
STORE, HOME, OUTPUTS, PAGES = FOLDER / "store", FOLDER / "home", FOLDER / "outputs", FOLDER / "pages"
STEPS = {
    "prepare-shards": "make tar shards of the handwritten digits that ship with scikit-learn",
    "train": "a small convolutional net, DistributedDataParallel, 1 master + 1 worker: two real processes",
    "collect-checkpoint": "copy the best checkpoint to where models are kept, verified",
    "evaluate": "read digits that it has never seen",
    "promote": "make it the champion, if it is good enough and better than the present one",
}
BEGUN = re.compile(r"Executing task '([^']+)'")
ENDED = re.compile(r"Task '([^']+)' finished with status (\w+)")
# kfp's own words, and what a step proposes to type: the end of the demo proposes what fits here.
NOISE = re.compile(r"\[KFP Executor| - INFO - |^ *(next +)?allaboard \w+ ")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

console = Console(highlight=False, soft_wrap=True)


def main(epochs: int | None) -> int:
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    before = history(open_store(STORE / "digits")) if STORE.exists() else History()
    console.print("\n[bold]Is tonight's model better than the one in production?[/]")
    if before.champion is None:
        console.print("[dim]There is no champion yet, so the first good model becomes it.[/]")
    else:
        accuracy = before.champion.metrics.get("accuracy")
        console.print(f"[dim]The champion is number {before.champion.number}, accuracy {accuracy:.4f}.[/]")
    package = compiled()
    code = run(FOLDER / "log.txt", {} if epochs is None else {"EPOCHS": str(epochs)})
    if code != 0:
        console.print(f"\n[bold red]✗ The pipeline failed.[/] Its whole log: {near(FOLDER / 'log.txt')}")
        return 1
    ending(package, before, history(open_store(STORE / "digits")), time.monotonic() - began)
    return 0


def compiled() -> Path:
    """The pipeline as the YAML that a Kubeflow Pipelines server takes."""
    from kfp import compiler
    from retrain_digits_kfp import retrain_digits

    package = FOLDER / "retrain_digits.yaml"
    compiler.Compiler().compile(retrain_digits, str(package))
    size = show_bytes(package.stat().st_size)
    console.print(f"\n[green]✓[/] compiled to IR YAML, {size}: {near(package)}")
    return package


def run(log: Path, settings: Mapping[str, str]) -> int:
    """The pipeline under kfp.local, in a process of its own; what it says is logged, and the best shown."""
    for place in (OUTPUTS, PAGES):
        shutil.rmtree(place, ignore_errors=True)
    environ = {**os.environ, "ALLABOARD_HOME": str(HOME), "PYTHONUNBUFFERED": "1", **settings}
    command = [sys.executable, str(Path(__file__).resolve()), "--here"]
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE.parent
        ) as pipeline,
    ):
        assert pipeline.stdout is not None
        # Ctrl-C reaches the pipeline too, which stops its training; we stay to hear that it did.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        show(kept(pipeline.stdout, file))
    return pipeline.returncode


def kept(lines: Iterator[str], file: object) -> Iterator[str]:
    """Each line without its colours, after it was written to the file."""
    for line in lines:
        plain = COLOURS.sub("", line.rstrip("\n"))
        print(plain, file=file, flush=True)  # type: ignore[call-overload]
        yield plain


def show(lines: Iterator[str]) -> None:
    """The steps' own words, without what kfp says around them."""
    step, began, inputs, failed = "", 0.0, False, False
    for line in lines:
        words = line.strip()
        if found := BEGUN.search(line):
            step, began = found.group(1), time.monotonic()
            number = list(STEPS).index(step) + 1 if step in STEPS else 0
            console.print(f"\n[bold cyan]{number}/{len(STEPS)} {step}[/]  [dim]{STEPS.get(step, '')}[/]")
        elif found := ENDED.search(line):
            took, failed = show_seconds(time.monotonic() - began), found.group(2) != "SUCCESS"
            mark = f"[red]✗ failed[/] after {took}" if failed else f"[green]✓[/] {took}"
            console.print(f"    {mark}")
            step = ""
        elif "Got executor_input:" in line:  # every input and output of the step, as JSON
            inputs = True
        elif inputs:
            inputs = words != "}" or len(line) - len(line.lstrip()) > 4
        elif step and words and not NOISE.search(line):
            console.print(f"    {escape(line.removeprefix('    ').partition('; its output: ')[0])}")


def ending(package: Path, before: History, after: History, seconds: float) -> None:
    """What came of it, where everything is, and what to try next."""
    PAGES.mkdir(parents=True)
    for step in ("train", "evaluate", "promote"):
        for report in OUTPUTS.glob(f"*/{step}/report"):
            shutil.copy(report, PAGES / f"{step}.html")
    champion = after.champion
    assert champion is not None
    promoted = before.champion is None or champion.number > before.champion.number
    accuracy = champion.metrics.get("accuracy", float("nan"))
    console.rule(style="green")
    if promoted:
        console.print(
            f"[bold green]✓ Promoted:[/] [bold]champion number {champion.number}, accuracy {accuracy:.4f}[/]"
        )
    else:
        console.print(
            f"[bold green]✓ The gate stayed shut:[/] [bold]the champion stays number {champion.number}, "
            f"accuracy {accuracy:.4f}[/]; a model that is not better is not promoted"
        )
    console.print(f"[dim]All of it took {show_seconds(seconds)}.[/]\n")
    numbers = {name: value for name, value in champion.metrics.items() if isinstance(value, (int, float))}
    rows = [
        ("champion", near(Path(champion.checkpoint))),
        ("metrics", ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())),
        ("this training", (PAGES / "train.html").as_uri()),
        ("this gate", (PAGES / "promote.html").as_uri()),
        ("members' logs", near(HOME / "local")),
        ("all that was said", near(FOLDER / "log.txt")),
        ("the pipeline", near(package)),
    ]
    for label, value in rows:
        console.print(f"  [cyan]{label:<19}[/]{escape(value)}")
    console.print("\n[bold]Try next[/]")
    programs = Path(sys.executable).parent
    allaboard, kfp = near(programs / "allaboard"), near(programs / "kfp")
    for command, why in (
        ("make demo-kfp", "again: only a better model is promoted"),
        ("make demo-kfp ARGS='--epochs 2'", "a model that learned less, and what the gate says to it"),
        (f"ALLABOARD_HOME={near(HOME)} {allaboard} list", "the runs of this demo"),
        (f"{allaboard} promote --into {near(STORE / 'digits')} --history", "all champions"),
        (f"{kfp} run create -e retrain -f {near(package)}", "the same pipeline on a cluster"),
    ):
        console.print(f"  {escape(command)}\n      [dim]{why}[/]")
    console.print()


def near(path: Path) -> str:
    """The path as one would type it here."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def here() -> None:
    """In the process of its own: kfp.local itself."""
    from retrain_digits_kfp import retrain_digits

    from allaboard_kfp import start_local

    start_local(OUTPUTS)
    retrain_digits(store=str(STORE), folder=str(HERE / "digits"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train, evaluate and promote, as a pipeline of Kubeflow.")
    parser.add_argument("--epochs", type=int, help="how often the data is seen (16)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.here:
        sys.exit(main(given.epochs))
    try:
        here()
    except (RuntimeError, KeyboardInterrupt):  # the step that failed has said why
        sys.exit(1)
