"""``allaboard engines``: the kinds of jobs that this version makes, and the gang schedulers they go with."""

from __future__ import annotations

from typing import Any

import click

from allaboard.cli.place import json_option
from allaboard.report.phrases import table
from allaboard.report.terminal import say, show_json

EPILOG = """\b
Examples:
  allaboard engines
  allaboard engines --matrix --json
"""


@click.command(epilog=EPILOG)
@click.option(
    "--matrix", is_flag=True, help="Also print which gang schedulers each of them supports, and how."
)
@json_option
def engines(matrix: bool, as_json: bool) -> None:
    """List the kinds of jobs that this version makes. `allaboard cluster` shows what a cluster has."""
    every = [_described(name) for name in _known()]
    if as_json:
        show_json({"engines": every})
        return
    rows = [
        [
            e["name"],
            ", ".join(e["frameworks"]),
            f"{e['kind']} {e['api_version']}",
            e["operator"],
            _roles(e["frameworks"]),
        ]
        for e in every
    ]
    for line in table(("ENGINE", "FRAMEWORK", "OBJECT", "OPERATOR", "ROLES, BY RANK"), rows):
        say(line)
    if matrix:
        say()
        gangs = [*every[0]["gangs"]]
        pairs = [[e["name"], *(_pair(e["gangs"][gang]) for gang in gangs), e["kueue"]["how"]] for e in every]
        for line in table(("ENGINE", *gangs, "kueue"), pairs):
            say(line)
        say()
        say(
            "marks: allaboard makes the gang's objects. natively: the operator does, where it was started so."
        )
        say("kueue admits whole jobs to a queue, whichever gang scheduler places them then.")
        for e in every:
            for gang, pair in [*e["gangs"].items(), ("kueue", e["kueue"])]:
                if pair["reason"]:
                    say(f"{e['name']} with {gang}: {pair['reason']}")


def _known() -> list[str]:
    from allaboard.engines import ENGINES

    return [*ENGINES]


def _described(name: str) -> dict[str, Any]:
    from allaboard.engines import ENGINES
    from allaboard.gangs import GANGS, kueue
    from allaboard.render.compatibility import pair_engine_and_gang

    engine = ENGINES[name]
    gangs: dict[str, dict[str, Any]] = {}
    for gang in GANGS.values():
        pair = pair_engine_and_gang(engine, gang)
        natively = gang.NAME in engine.NATIVELY
        gangs[gang.NAME] = {"how": pair.how, "natively": natively, "reason": pair.reason or None}
    reason = kueue.why_not_admitted(name)
    admits = "admitted, if configured" if name in kueue.OFF_BY_DEFAULT else "admitted"
    return {
        "name": engine.NAME,
        "frameworks": {
            name: {
                "roles": dict(engine.roles(name)),
                "helpers": sorted(engine.helpers(name)),
                "elastic": engine.is_elastic(name),
                "restart": engine.default_restart(name),
            }
            for name in engine.FRAMEWORKS
        },
        "kind": engine.KIND,
        "api_version": engine.API_VERSION,
        "operator": engine.OPERATOR.title,
        "gangs": gangs,
        "kueue": {"how": admits if reason is None else "refused", "reason": reason},
    }


def _roles(frameworks: dict[str, dict[str, Any]]) -> str:
    """``chief (one), worker, ps``."""
    if len(frameworks) > 1:
        return "as the framework's own engine"
    (own,) = frameworks.values()
    roles = [f"{role} (one)" if most == 1 else role for role, most in own["roles"].items()]
    return ", ".join(roles) + ("; elastic" if own["elastic"] else "")


def _pair(pair: dict[str, Any]) -> str:
    return f"{pair['how']}, natively" if pair["natively"] else str(pair["how"])
