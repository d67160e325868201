"""Data sets for training: tar shards that WebDataset reads, and `index.json`, which says how many samples are
where.

    index = prepare("photos/", "s3://bucket/photos-shards", bytes_per_shard="256Mi")
    verify("s3://bucket/photos-shards")          # [] when all is well

Standard library only, but for what the samples themselves are made of. Training processes read with
`allaboard.inside.ShardReader`.
"""

from __future__ import annotations

from allaboard.shards.index import Index, Shard
from allaboard.shards.prepare import prepare
from allaboard.shards.samples import resolve
from allaboard.shards.verify import load_index, verify

__all__ = ["Index", "Shard", "load_index", "prepare", "resolve", "verify"]
