"""Records of a partition, by offset, by time or by key; and what became of one of them."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.base.typed import EPOCH, moment_of, whole
from lapse.client.cluster import Cluster
from lapse.client.fetched import Fetched
from lapse.client.offsets import EARLIEST, LATEST, Where, list_offsets
from lapse.client.outlook import ask_all
from lapse.client.range_reader import FetchLimits, OffsetRange, read_range
from lapse.client.record import ConsumerRecord
from lapse.lifecycle.outlook.explain import Explained
from lapse.web.asked import Asked, BadQuestion, NotFound, Page
from lapse.web.pages.partition import partition_of
from lapse.wire.schema.describe_outlook import EXPLAIN, DescribeOutlookRequest

COUNT, COUNT_MAX = 50, 500
OFFSET_MAX = (1 << 63) - 1
READ_BYTES_MAX = 32 << 20  # of one look: a key may be rare
LIMITS = FetchLimits(partition_bytes_max=1 << 20, api_timeout_ms=20_000)
_ESCAPED = re.compile(
    rb"\\x([0-9a-fA-F]{2})|\\(?:u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4}))|\\([ntr])"
)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}

Keys = frozenset[bytes] | None


@dataclass(slots=True)
class Found:
    """What a look brought; `next_offset`: where the next one goes on, None at the end."""

    records: list[ConsumerRecord] = field(default_factory=list)
    next_offset: int | None = None
    bytes_read: int = 0


async def show(asked: Asked) -> Page:
    """Committed ones, from an offset, a time or the start on; with `key` those of one key."""
    where = partition_of(asked)
    count = max(asked.whole("count", COUNT, COUNT_MAX), 1)
    start, stable = await _bounds(asked, where)
    begin = max(await _begin(asked, where, start, stable, count), start)
    keys = keys_of(asked.raw("key")) if asked.raw("key") else None
    found = await look(asked.cluster, OffsetRange(where, begin, stable), count, keys)
    return Page(
        "records.html",
        {
            "here": "topics",
            "where": where,
            "start": start,
            "stable": stable,
            "begin": begin,
            "found": found,
            "count": count,
            "asked": {name: asked.raw(name) for name in ("from", "time", "key")},
        },
    )


async def look(cluster: Cluster, wanted: OffsetRange, count: int, keys: Keys) -> Found:
    """The first `count` records of the range, or of a key in it, within READ_BYTES_MAX."""
    found = Found()
    async with aclosing(read_range(cluster, wanted, committed=True, limits=LIMITS)) as some:
        async for fetched in some:
            found.bytes_read += len(fetched.data)
            room = count + 1 - len(found.records)
            found.records += await asyncio.to_thread(_first, fetched, wanted, keys, room)
            if len(found.records) > count:
                found.next_offset = found.records.pop().offset
                return found
            if found.bytes_read >= READ_BYTES_MAX and fetched.next_offset < wanted.offset_until:
                found.next_offset = fetched.next_offset
                return found
    return found


def _first(fetched: Fetched, wanted: OffsetRange, keys: Keys, room: int) -> list[ConsumerRecord]:
    """Those that are wanted, as many as there is room for; in a thread: each is parsed."""
    records = (
        one
        for one in fetched.records()
        if one.offset < wanted.offset_until  # the last batch may reach beyond it
        and (keys is None or one.key in keys)
    )
    return list(islice(records, room))


async def show_one(asked: Asked) -> Page:
    """Where an offset is and why it stays, or when and why it went, as each broker says."""
    where = partition_of(asked)
    text: str = asked.request.path_params["offset"]
    offset = whole(text)
    if offset is None or offset > OFFSET_MAX:
        raise NotFound(f"{text}: an offset is a number")
    request = DescribeOutlookRequest(
        what=EXPLAIN, topic=where.topic, logs=(str(where),), offset=offset
    )
    said = await ask_all(asked.cluster, request)
    fates = [one for one in said.of(Explained) if one.partition == str(where)]
    return Page(
        "record.html",
        {"here": "topics", "where": where, "offset": offset, "fates": fates, "silent": said.silent},
    )


def keys_of(text: str) -> frozenset[bytes]:
    r"""What is typed, as it is and with `\x00`, `\n` and `\u200b` as pages show such bytes."""
    typed = text.encode()

    def meant(found: re.Match[bytes]) -> bytes:
        byte, short, long, letter = found.groups()
        point = short or long
        if byte is not None:
            return bytes.fromhex(byte.decode())
        if point is not None:
            return chr(int(point, 16)).encode(errors="replace")
        return _LETTERS[letter]

    return frozenset({typed, _ESCAPED.sub(meant, typed)})


async def _bounds(asked: Asked, where: TopicPartition) -> tuple[int, int]:
    """Log start and last stable offset; raises KafkaError."""
    connection = await asked.cluster.leader_connection(where)
    start = (await list_offsets(connection, {where: EARLIEST}))[where]
    stable = (await list_offsets(connection, {where: LATEST}, committed=True))[where]
    for one in (start, stable):
        if isinstance(one, KafkaError):
            raise one
    assert isinstance(start, int)
    assert isinstance(stable, int)
    return start, stable


async def _begin(asked: Asked, where: TopicPartition, start: int, stable: int, count: int) -> int:
    """By `from` (an offset, `start`, `end`), or by `time`."""
    if asked.text("time"):
        at = await _offset_at(asked, where, parse_time(asked.text("time"), _now(asked)))
        return stable if at < 0 else at
    text = asked.text("from", "start")
    if text == "start":
        return start
    return stable - count if text == "end" else asked.whole("from", start, OFFSET_MAX)


def _now(asked: Asked) -> datetime:
    return datetime.fromtimestamp(asked.clock.now_ms() / 1000, UTC)


async def _offset_at(asked: Asked, where: TopicPartition, moment: Where) -> int:
    connection = await asked.cluster.leader_connection(where)
    found = (await list_offsets(connection, {where: moment}))[where]
    if isinstance(found, KafkaError):
        if found.code is ErrorCode.OFFSET_NOT_AVAILABLE:
            return -1
        raise found
    return found


def parse_time(text: str, now: datetime) -> datetime:
    """An age like 30m, milliseconds, or ISO 8601, in UTC without a zone; raises BadQuestion."""
    moment = moment_of(text, now)
    if moment is None:
        try:
            moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError as e:
            allowed = "like 2026-11-29T12:00:00Z, 30m ago as 30m, or milliseconds since 1970"
            raise BadQuestion(f"time={text}: allowed is a time {allowed}") from e
    if moment < EPOCH:
        raise BadQuestion(f"time={text}: allowed is a time from 1970 on")
    return moment
