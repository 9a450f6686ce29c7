"""The files of a table of a topic's records, in a folder or in an object store."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from lapse.base.bucket import Bucket, is_bucket
from lapse.base.errors import ConfigError, StorageError
from lapse.base.ids import parse_topic_id
from lapse.lifecycle.erase import objects
from lapse.lifecycle.erase.places import Listing, list_folder

# What an export keeps in its table's folder.
EXPORT_STATE, EXPORT_CATALOG = "_lapse_export.json", "_lapse_catalog.db"
_OF_A_TABLE = ("topic", "topic_id")
_ROWS_OF = re.compile(r"(?:^|/)partition=([0-9]{1,10})/")


def list_table(place: str, topic: str, partition: int | None) -> Listing:
    """Everything below a table's place, but for the rows of other partitions than that one.

    The place is a directory, or `s3://BUCKET/PREFIX`.
    """
    listing = objects.listed(place) if is_bucket(place) else list_folder(Path(place))
    if listing.problem is not None:
        return listing
    of_topic, _ = topic_of_table(place)
    if not may_be_of(place, of_topic, topic):
        return Listing(problem=f"is a table of topic {of_topic}")
    is_table = of_topic is not None or any(p.path.endswith(".parquet") for p in listing.places)
    if not is_table:
        return Listing(problem="is no table: it has no Parquet file, and is no export")
    places = (
        found
        for found in listing.places
        if partition is None or partition_of_rows(found.path) in {None, partition}
    )
    return replace(listing, places=tuple(places))


def may_be_of(place: str, of_topic: str | None, topic: str) -> bool:
    """Whether rows of a topic may be in a table that says of which topic it is.

    In an object store that is said by another object than the one that says which rows there are,
    and a moment later.
    """
    return is_bucket(place) or of_topic in {None, topic}


def topic_of_table(place: str) -> tuple[str | None, str | None]:
    """A table's topic and its id, hexadecimal; None where no export says it."""
    try:
        told = json.loads(_state_of(place))
    except (OSError, ValueError, StorageError, ConfigError):
        return None, None
    topic, topic_id = (told.get(n) if isinstance(told, dict) else None for n in _OF_A_TABLE)
    try:
        found = parse_topic_id(topic_id).hex if isinstance(topic_id, str) else None
    except ValueError:
        found = None
    return topic if isinstance(topic, str) else None, found


def _state_of(place: str) -> bytes:
    if not is_bucket(place):
        return (Path(place) / EXPORT_STATE).read_bytes()
    with Bucket(place).source(EXPORT_STATE) as source:
        return bytes(source.read())


def partition_of_rows(path: str) -> int | None:
    """The topic's partition that a table's file has rows of, by the folders it is in."""
    found = _ROWS_OF.search(path)
    return None if found is None else int(found[1])
