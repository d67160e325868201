"""The values of a run's secrets: whatever the training does with them, no verb that tells of the run shows
them. ``logs`` alone shows what members wrote as it is.
"""

from __future__ import annotations

import base64
from pathlib import Path

import click

from allaboard.cli import VERBS, app
from tests.core.cli.terminal import Terminal, finished

CANARY = "kanarie/Vogel 9LmKp3VwB8"
"""A value of a secret, with what changes in a URL and in JSON."""
NAMED = "plainWordOfTheJob77"
"""One that stands in the job, under a name that says so."""
LEAKS = """
import os, sys, time
from allaboard.inside import report
secret, named = os.environ["WORD"], os.environ["API_KEY"]
report(step=1, total=2, loss=1.0, **{secret: 1.0, named: 2.0})
print("login with", secret, "and", named, flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
raise RuntimeError(f"the hub refuses {secret} and {named}, tried:" + f" {secret}" * 30)
"""
TELLS = {
    "status": ["status", "digits"],
    "doctor": ["doctor", "digits"],
    "events": ["events", "digits"],
    "follow": ["follow", "digits"],
    "report": ["report", "digits", "-o", "page.html"],
    "snapshot": ["snapshot", "digits", "-o", "case.json"],
    "stop": ["stop", "digits"],
    "suspend": ["suspend", "digits"],
    "resume": ["resume", "digits"],
    "checkpoints": ["checkpoints", "list", "digits"],
    "list": ["list"],
    "queues": ["queues"],
    "delete": ["delete", "digits"],
}
"""A verb that tells of runs, and how it is typed; `run` is typed first."""
SHOWS_AS_IT_IS = {"logs"}


def a_secret(terminal: Terminal) -> None:
    folder = Path(terminal.environ["ALLABOARD_HOME"]) / "secrets" / "hub"
    folder.mkdir(parents=True, mode=0o700)
    key = folder / "WORD"
    key.write_text(CANARY + "\n")
    key.chmod(0o600)


def leaks(text: str) -> list[str]:
    encoded = base64.b64encode(CANARY.encode()).decode()
    half = CANARY.partition(" ")[2]  # folded, or cut off
    spellings = (half, CANARY, CANARY.replace("/", "%2F").replace(" ", "%20"), encoded, NAMED)
    return [value for value in spellings if value in text]


def test_every_verb_that_takes_a_run_is_asked() -> None:
    context = click.Context(app)

    def names_a_run(command: click.Command | None) -> bool:
        if isinstance(command, click.Group):
            return any(names_a_run(inner) for inner in command.commands.values())
        return any(
            p.name in ("run", "runs", "where") and p.param_type_name == "argument" for p in command.params
        )

    takes = {verb for verb in VERBS if names_a_run(app.get_command(context, verb))}
    assert takes - {*TELLS} == SHOWS_AS_IT_IS


def test_no_verb_shows_the_secrets_that_the_training_prints(ab: Terminal) -> None:
    a_secret(ab)
    job = ab.job(
        LEAKS,
        policy={"backoff_limit": 0},
        secrets=[{"name": "hub", "env": True}],
        environment={"API_KEY": NAMED},
        checkpoints={"uri": str(ab.folder / "saved"), "every": 1},
    )
    running = ab.start("run", job, "--key", "k")
    ab.until_said("login")
    follower = ab.start("follow", "digits", "--json")
    live = [
        ab(*words) for words in (["status", "digits"], ["status", "digits", "--json"], ["list", "--json"])
    ]
    ab.write("go", "")
    assert leaks(ab("logs", "digits").out) == [CANARY.partition(" ")[2], CANARY, NAMED]
    told = {f"live {n}": said for n, said in enumerate(live)}
    told |= {"run": finished(running), "live follow": finished(follower)}
    assert told["run"].code == 1 and "the hub refuses ***" in told["run"].text, told["run"]
    for verb, words in TELLS.items():
        told[verb] = ab(*words)
        if verb not in ("follow", "delete"):
            told[f"{verb} --json"] = ab(*words, "--json")
    assert "the hub refuses ***" in told["doctor"].out and "***" in told["status --json"].out
    assert not {verb: leaks(said.text) for verb, said in told.items() if leaks(said.text)}
    for file in ("page.html", "case.json"):
        assert not leaks((ab.folder / file).read_text()), file
