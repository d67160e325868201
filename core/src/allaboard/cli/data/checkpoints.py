"""``allaboard checkpoints``: what a run has saved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from allaboard.cli.place import Place, is_place, json_option, place_options, resolved, store_option
from allaboard.errors import BadInput, SiteError
from allaboard.report.terminal import hide, progress_bar, say, show_json
from allaboard.text.units import show_bytes
from allaboard.text.untrusted import show

if TYPE_CHECKING:
    from allaboard.checkpoints import Checkpoint, Torn
    from allaboard.checkpoints.foreign.adopting import Adopted
    from allaboard.storage.base import Store

WHERE = (
    "WHERE is a run, or the place itself: a run's folder, or one checkpoint in it (path, s3:// or store://)."
)
LIST_EPILOG = """\b
Examples:
  allaboard checkpoints list digits
  allaboard checkpoints list s3://bucket/digits/digits-1f0c9a77 --json
"""
VERIFY_EPILOG = """\b
Examples:
  allaboard checkpoints verify digits
  allaboard checkpoints verify store://digits/checkpoints/digits-1f0c9a77 --step 400

Exit code 0 when every byte is as its manifest says, 2 when something is damaged.
"""
COLLECT_EPILOG = """\b
Examples:
  allaboard checkpoints collect digits store://models --best val_loss:min
  allaboard checkpoints collect digits ./models --step 400

A copy is verified, and its manifest is written last. An interrupted copy continues where it stopped.
"""
ADOPT_EPILOG = """\b
Examples:
  allaboard checkpoints adopt out
  allaboard checkpoints adopt out/checkpoint-500 --json

Knows checkpoints of Hugging Face (Trainer, Accelerate, PEFT), Lightning, torch, DeepSpeed, safetensors,
XGBoost, LightGBM and Keras. Each is judged by what its own format promises; no pickle is loaded. The files
stay where they are, and are never removed. Exit code 2 when one is torn.
"""
PRUNE_EPILOG = """\b
Example:
  allaboard checkpoints prune digits --keep 3 --best val_loss:min

The newest complete checkpoint, the best one and those in use are never retired. Files go an hour later.
"""


@click.group(no_args_is_help=True)
def checkpoints() -> None:
    """List, verify, adopt, collect and prune what a run has saved."""


@checkpoints.command(
    name="list", epilog=LIST_EPILOG, help=f"Show the checkpoints of a run, oldest first. {WHERE}"
)
@click.argument("where")
@store_option
@place_options
@json_option
def list_(where: str, store: str | None, at: Place, as_json: bool) -> None:
    from allaboard.checkpoints import Torn

    uri, step = _resolve_place(where, store, at)
    items = [item for item in _scan(uri) if step in (None, item.step)]
    complete = [item for item in items if not isinstance(item, Torn)]
    if as_json:
        show_json({"checkpoints": [_checkpoint_body(item) for item in complete]})
        return
    from allaboard.report.phrases import metrics, table

    if not complete:
        say(f"no complete checkpoint in {uri}")
    else:
        head = ("step", "saved", "size", "metrics", "where")
        rows = (
            (str(c.step), _saved_at(c), show_bytes(c.bytes), metrics(c.metrics) or "-", c.files)
            for c in complete
        )
        for line in table(head, rows):
            say(line)
    for torn in items:
        if isinstance(torn, Torn):
            say(f"step {torn.step} is torn and not used: {'; '.join(torn.problems)}", to_stderr=True)


def _scan(uri: str) -> Iterator[Checkpoint | Torn]:
    """The checkpoints in a run's folder, or in each run's folder below a common one."""
    from allaboard.checkpoints import scan, step_of
    from allaboard.storage import open_store

    store = open_store(uri)
    folders = store.folders()
    if not folders or any(step_of(name) is not None for name in folders):
        yield from scan(store)
        return
    for name in folders:
        yield from scan(store.below(name))


def _checkpoint_body(checkpoint: Checkpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    return {
        "uri": checkpoint.uri,
        "files": checkpoint.files,
        "format": manifest.format,
        "step": checkpoint.step,
        "run": manifest.run,
        "attempt": manifest.attempt,
        "world_size": manifest.world_size,
        "created": manifest.created,
        "bytes": checkpoint.bytes,
        "metrics": dict(manifest.metrics),
        "parent": manifest.parent,
    }


def _saved_at(checkpoint: Checkpoint) -> str:
    from allaboard.report import localtime
    from allaboard.text.units import from_rfc3339

    try:
        return localtime.moment(from_rfc3339(checkpoint.manifest.created), time.time())
    except ValueError:
        return "-"


@checkpoints.command(epilog=VERIFY_EPILOG, help=f"Read every byte and compare it with the manifest. {WHERE}")
@click.argument("where")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Only this step.")
@store_option
@place_options
@json_option
def verify(where: str, step: int | None, store: str | None, at: Place, as_json: bool) -> int:
    from allaboard import checkpoints as of

    uri, named = _resolve_place(where, store, at)
    place = _open_existing_store(uri)
    wanted = step if step is not None else named
    steps = [item.step for item in of.scan(place)] if wanted is None else [wanted]
    if not steps:
        raise BadInput(f"no checkpoint in {uri}; the folder of a run holds step-000000000120 and the like")
    by_step = {number: of.verify(place, number) for number in steps}
    if as_json:
        show_json(
            {
                "checkpoints": [
                    {"step": number, "ok": not problems, "problems": problems}
                    for number, problems in by_step.items()
                ]
            }
        )
    for number, problems in () if as_json else by_step.items():
        say(f"step {number}: {'; '.join(problems) or 'whole'}")
    return 2 if any(by_step.values()) else 0


@checkpoints.command(
    epilog=ADOPT_EPILOG,
    help=f"Put a manifest beside each whole checkpoint that another library wrote. {WHERE}",
)
@click.argument("where")
@store_option
@place_options
@json_option
def adopt(where: str, store: str | None, at: Place, as_json: bool) -> int:
    from allaboard.checkpoints.foreign import Verdict
    from allaboard.checkpoints.foreign.adopting import adopt_at

    copies: list[Checkpoint | Torn] = []
    if is_place(where):
        uri = resolved(where, store)
        adopted = adopt_at(uri)
    else:
        uri = _resolve_place(where, store, at)[0]
        adopted, copies = _adopt_run(where, uri, at)
    if not (adopted.added or adopted.known or adopted.left or copies):
        raise BadInput(f"{uri}: no checkpoint of a known format is there; give the folder that holds it")
    if as_json:
        show_json(
            {
                "adopted": [_checkpoint_body(item) for item in adopted.added],
                "known": list(adopted.known),
                "left": [
                    {"name": item.unit.name, "format": item.format, "verdict": item.verdict, "reason": reason}
                    for item, reason in adopted.left
                ],
                "copies": [{"step": copy.step, "problems": [*_problems(copy)]} for copy in copies],
            }
        )
    else:
        for checkpoint in adopted.added:
            size = show_bytes(checkpoint.bytes)
            say(f"step {checkpoint.step}: {checkpoint.manifest.format}, {size}: {checkpoint.files}")
        if adopted.known:
            say(f"{_list_steps(adopted.known)} had a manifest already")
        _show_copies(uri, adopted, copies)
        for item, reason in adopted.left:
            name = show(item.unit.name or uri, 500, quote=False)
            say(
                f"{name} ({item.format}) is {item.verdict}, and left: {reason}",
                to_stderr=True,
            )
    torn = any(item.verdict is Verdict.TORN for item, _ in adopted.left) or any(map(_problems, copies))
    return 2 if torn else 0


def _adopt_run(run: str, uri: str, at: Place) -> tuple[Adopted, list[Checkpoint | Torn]]:
    """Those in the run's own folder, and those that its newest attempt wrote into the folder of its job; and
    the copies of them at ``uri``, where the job has ``checkpoints.folder``.
    """
    from allaboard.checkpoints import Manifest, scan
    from allaboard.checkpoints.foreign.adopting import Places, adopt
    from allaboard.storage import open_store

    backend = at.open()
    seen = backend.observe(run)
    saving = backend.started_with(run).spec.get("checkpoints") or {}
    folder, own, copies = saving.get("folder"), open_store(uri), list[Any]()
    if isinstance(folder, str):
        copies = scan(own)
        own = open_store(f"{folder.rstrip('/')}/{uri.rpartition('/')[2]}")
    places = Places(own, folder is not None or "format" in saving, seen.created or 0.0)
    manifest = Manifest(step=0, run=seen.run, attempt=seen.attempt, generation=seen.generation)
    return adopt(places, manifest), copies


def _show_copies(uri: str, adopted: Adopted, copies: list[Checkpoint | Torn]) -> None:
    """Say which checkpoints of a folder have whole copies at ``uri``, the run's own folder there."""
    whole = [copy.step for copy in copies if not _problems(copy)]
    if whole:
        say(f"{uri} has copies of {_list_steps((*whole,))}, each with all of its files")
    newest = max((*(item.step for item in adopted.added), *adopted.known), default=-1)
    if copies and newest > max(whole, default=-1):
        say(f"step {newest} has no whole copy yet; the run makes it, or its next attempt")
    for copy in copies:
        if problems := _problems(copy):
            say(f"the copy of step {copy.step} is torn: {'; '.join(problems)}", to_stderr=True)


def _problems(item: Checkpoint | Torn) -> tuple[str, ...]:
    return (*getattr(item, "problems", ()),)


@checkpoints.command(
    epilog=COLLECT_EPILOG, help=f"Copy one checkpoint elsewhere, verified at both ends. {WHERE}"
)
@click.argument("where")
@click.argument("into")
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="This step; default: the newest complete one."
)
@click.option("--best", metavar="METRIC:MODE", help="The best one: val_loss:min or accuracy:max.")
@store_option
@place_options
@json_option
def collect(
    where: str, into: str, step: int | None, best: str | None, store: str | None, at: Place, as_json: bool
) -> None:
    from allaboard import checkpoints as of

    if step is not None and best is not None:
        raise BadInput("give either --step or --best, not both")
    uri, named = _resolve_place(where, store, at)
    chosen = step if step is not None else named
    which: str | int = f"best:{best}" if best is not None else "latest" if chosen is None else chosen
    if best is not None:
        of.parse_best(best)
    with progress_bar("collecting", show_bytes, aside=as_json) as moved:
        collected = of.collect(uri, resolved(into, store), which, progress=moved)
    if as_json:
        show_json(collected.to_dict())
        return
    for note in collected.notes:
        say(note, to_stderr=True)
    again = (
        f" ({show_bytes(collected.bytes - collected.copied)} were there already)"
        if collected.copied < collected.bytes
        else ""
    )
    say(f"step {collected.step}, {show_bytes(collected.bytes)}{again}: {collected.uri}")


@checkpoints.command(epilog=PRUNE_EPILOG, help=f"Retire old checkpoints. {WHERE}")
@click.argument("where")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Number of newest checkpoints to keep.",
)
@click.option("--best", metavar="METRIC:MODE", help="Also keep the best one: val_loss:min or accuracy:max.")
@store_option
@place_options
@json_option
def prune(where: str, keep: int, best: str | None, store: str | None, at: Place, as_json: bool) -> None:
    from allaboard import checkpoints as of

    uri, step = _resolve_place(where, store, at)
    if step is not None:
        raise BadInput(f"{uri} is in one checkpoint; name the run's folder")
    pruned = of.prune(
        _open_existing_store(uri), keep, None if best is None else of.parse_best(best), time.time()
    )
    if as_json:
        show_json(pruned.to_dict())
        return
    say(f"kept {_list_steps(pruned.kept)}; retired {_list_steps(pruned.retired)}")
    if pruned.held:
        say(f"a reader holds {_list_steps(pruned.held)}: kept for now")
    if pruned.removed:
        say(f"removed the files of {_list_steps(pruned.removed)}: {show_bytes(pruned.bytes)}")
    if pruned.waiting:
        say(f"the files of {_list_steps(pruned.waiting)} go within the hour, at the next prune or save")


def _list_steps(steps: tuple[int, ...]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}" if steps else "none"


def _open_existing_store(uri: str) -> Store:
    from allaboard.storage import open_store

    return open_store(uri)


def _resolve_place(where: str, store: str | None, at: Place) -> tuple[str, int | None]:
    """The run folder that ``where`` names, and the step if it names one checkpoint."""
    from allaboard.checkpoints import find

    if is_place(where):
        return find(resolved(where, store))
    backend = at.open()
    hide(backend.secrets_of(where))  # the names of metrics are a member's
    saved = backend.saving(where)
    if saved is None:
        raise BadInput(f"the job of run {where!r} has no checkpoints; give their folder instead")
    if at.is_cluster and ("://" not in saved or saved.startswith("file://")):
        raise SiteError(
            f"the checkpoints of {where} are at {saved} in its members, on a volume that is not mounted "
            "here: whether there are any cannot be seen; where that volume is mounted, name its folder",
            code="not_mounted",
        )
    return saved, None
