"""``allaboard shards``: data sets for training, as tar shards and an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from allaboard.cli.place import json_option, resolved, store_option
from allaboard.report.terminal import progress_bar, say, show_json
from allaboard.text.units import show_bytes

if TYPE_CHECKING:
    from allaboard.shards import Index

PREPARE_EPILOG = """\b
Examples:
  allaboard shards prepare photos/ store://photos/shards
  allaboard shards prepare photos/ s3://bucket/shards --bytes-per-shard 64Mi
  allaboard shards prepare prepare:samples ./shards       the function `samples` of prepare.py

A folder's files become samples by their names: 0001.jpg and 0001.json are one sample, 0001.left.png is its
part left.png, and 2026.01.02.jpg, whose dots belong to the key, is refused. An interrupted call continues
where it stopped; an unchanged source needs no work. The last line names the version that was made:
it stays what it is, and INTO leads to the newest. Versions that nobody has used for 7 days are removed
(ALLABOARD_KEEP_SHARDS=30d).
"""
LIST_EPILOG = """\b
Example:
  allaboard shards list store://photos/shards
"""
VERIFY_EPILOG = """\b
Example:
  allaboard shards verify store://photos/shards

Exit code 0 when every byte is as the index says, 2 when something is damaged.
"""


@click.group(no_args_is_help=True)
def shards() -> None:
    """Prepare, list and verify data sets."""


@shards.command(epilog=PREPARE_EPILOG)
@click.argument("source")
@click.argument("into")
@click.option(
    "--samples-per-shard", type=click.IntRange(min=1), metavar="N", help="The most samples in a shard."
)
@click.option(
    "--bytes-per-shard",
    metavar="SIZE",
    help="The largest size of a shard, like 64Mi; default: 256Mi.",
)
@store_option
@json_option
def prepare(
    source: str,
    into: str,
    samples_per_shard: int | None,
    bytes_per_shard: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Turn a folder, or the samples of a Python function (module:function), into shards and an index."""
    from allaboard import shards as of

    into = resolved(into, store)
    with progress_bar("preparing", str, aside=as_json) as moved:
        index = of.prepare(
            source,
            into,
            samples_per_shard=samples_per_shard,
            bytes_per_shard=bytes_per_shard,
            progress=lambda samples, total, _: moved(samples, total),
            notice=lambda text: say(text, to_stderr=True),
        )
    version = index.version_uri(into)
    if as_json:
        show_json({"uri": version, "into": into, **index.own.to_dict()})
    else:
        say(f"{_describe_size(index)}: {version}")


@shards.command(name="list", epilog=LIST_EPILOG)
@click.argument("uri")
@store_option
@json_option
def list_(uri: str, store: str | None, as_json: bool) -> None:
    """Show the shards of a data set."""
    from allaboard import shards as of
    from allaboard.report.phrases import table

    at = resolved(uri, store)
    index = of.load_index(at)
    if as_json:
        show_json({"uri": at, **index.to_dict()})
        return
    for line in table(
        ("shard", "samples", "size"), ((s.name, str(s.samples), show_bytes(s.size)) for s in index.shards)
    ):
        say(line)
    say(f"{_describe_size(index)}; made {index.created}")


@shards.command(epilog=VERIFY_EPILOG)
@click.argument("uri")
@store_option
@json_option
def verify(uri: str, store: str | None, as_json: bool) -> int:
    """Read every byte and compare it with the index."""
    from allaboard import shards as of

    at = resolved(uri, store)
    problems = of.verify(at)
    if as_json:
        show_json({"uri": at, "ok": not problems, "problems": problems})
    for problem in () if as_json else problems or ["every shard is as the index says"]:
        say(problem)
    return 2 if problems else 0


def _describe_size(index: Index) -> str:
    shards = _count(len(index.shards), "shard")
    return f"{_count(index.samples, 'sample')} in {shards}, {show_bytes(index.size)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
