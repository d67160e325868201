from __future__ import annotations

import json
from typing import Any

import pytest

from allaboard.errors import Corrupt
from allaboard.shards.index import Index, Shard

INDEX = Index(
    (Shard("shard-000000-0a.tar", 10240, 3, "0a" * 32), Shard("shard-000001-0b.tar", 20480, 4, "0b" * 32)),
    "files:v1:ff",
    "2026-11-21T12:00:00.250Z",
)


def changed(**fields: Any) -> bytes:
    return json.dumps({**INDEX.to_dict(), **fields}).encode()


def test_what_is_written_reads_back() -> None:
    assert Index.from_bytes(INDEX.to_bytes(), "here") == INDEX
    assert INDEX.samples == 7 and INDEX.size == 30720


def test_unknown_fields_and_newer_versions_are_read_as_far_as_understood() -> None:
    assert Index.from_bytes(changed(compression=None, version=2), "here") == INDEX


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not an index"),
        (b"[]", "is not an index"),
        (b'{"samples": 1}', "is not an index"),
        (INDEX.to_bytes()[:-40], "is not an index"),
        (changed(shards=[{"name": "a"}]), "is damaged"),
        (changed(samples=8), "its shards hold 7 samples, its head says 8"),
        (changed(shards=[{"name": "/etc/passwd", "size": 1, "samples": 7, "sha256": ""}]), "is damaged"),
        (changed(shards=[{"name": "a", "size": -1, "samples": 7, "sha256": ""}]), "is damaged"),
        (changed(version=2, shards=[{"blob": "a"}]), "version 2, newer than 1; upgrade"),
    ],
)
def test_what_is_no_index_is_refused_by_name(data: bytes, words: str) -> None:
    with pytest.raises(Corrupt, match=words) as caught:
        Index.from_bytes(data, "s3://bucket/index.json")
    assert str(caught.value).startswith("s3://bucket/index.json")


def test_the_content_is_that_of_the_samples_not_of_how_they_were_made() -> None:
    other = Index(INDEX.shards, "content:v1:aa", "2027-01-01T00:00:00.000Z")
    assert other.content == INDEX.content
    assert Index(INDEX.shards[::-1], INDEX.fingerprint, INDEX.created).content != INDEX.content


def test_urls_are_those_that_webdataset_takes() -> None:
    assert INDEX.urls("s3://bucket/data/") == [
        "s3://bucket/data/shard-000000-0a.tar",
        "s3://bucket/data/shard-000001-0b.tar",
    ]
