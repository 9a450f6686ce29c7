"""A partition: its log as a bar, its segments, what waits in it, and why it is not cleaned."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lapse.base.errors import KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.offsets import EARLIEST, LATEST, list_offsets
from lapse.client.outlook import BROKER_SECONDS_MAX, Said, ask_all
from lapse.lifecycle.outlook.explain import Explained
from lapse.web.asked import Asked, NotFound, Page
from lapse.web.bar import Mark, Part, Piece, marks_of, parts_of
from lapse.web.pages.topics import topic_name
from lapse.wire.schema.describe_outlook import (
    EXPLAIN,
    LAST_GROUPS,
    PLAN_ROWS,
    SEGMENT_ROWS,
    DescribeOutlookRequest,
)

SEGMENTS_SHOWN, ROUNDS_SHOWN = 200, 50

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ends:
    """A log's ends for readers; None where the leader does not say."""

    start: int | None = None
    last_stable: int | None = None
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """What one broker says of the log.

    Attributes:
        pending: by horizon (microseconds), bytes of tombstones and markers that wait for it.
        rounds: of its ledger, newest first, each with the records that it removed by reason.
    """

    broker: int
    explained: Explained
    plan: Row
    segments: Sequence[Row]
    parts: Sequence[Part]
    marks: Sequence[Mark]
    pending: Sequence[tuple[int, int]]
    rounds: Sequence[Row]


async def show(asked: Asked) -> Page:
    """Of each broker that has it, its leader first."""
    where = partition_of(asked)
    topics = await asked.cluster.topics({where.topic})
    topic = topics.get(where.topic)
    if topic is None or where.partition not in topic.leaders:
        raise NotFound(f"{where}: there is no such partition")
    ends, leader, said = await asyncio.gather(
        ends_of(asked, where), leader_of(asked, where), _said(asked, where)
    )
    values = {"here": "topics", "where": where, "ends": ends, "leader": leader}
    if isinstance(said, KafkaError):
        return Page("partition.html", {**values, "replicas": [], "silent": {}, "refused": said})
    explained, *tables = said
    replicas = [
        _replica(broker, one, [_rows(table, broker) for table in tables], ends)
        for broker, lines in explained.lines.items()
        for one in Said({broker: lines}).of(Explained)
        if one.partition == str(where)
    ]
    replicas.sort(key=lambda one: (one.broker != leader, one.broker))
    return Page(
        "partition.html",
        {**values, "replicas": replicas, "silent": explained.silent, "refused": None},
    )


def partition_of(asked: Asked) -> TopicPartition:
    """Of the address; raises NotFound."""
    number: str = asked.request.path_params["partition"]
    if not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise NotFound(f"{number}: a partition is a number")
    return TopicPartition(topic_name(asked), int(number))


async def ends_of(asked: Asked, where: TopicPartition) -> Ends:
    """As readers get them; what cannot be known, or not in time, is left open."""
    try:
        async with asyncio.timeout(BROKER_SECONDS_MAX):
            connection = await asked.cluster.leader_connection(where)
            found = [
                (await list_offsets(connection, {where: at}, committed=committed))[where]
                for at, committed in ((EARLIEST, False), (LATEST, True), (LATEST, False))
            ]
    except (LapseError, TimeoutError):
        return Ends()
    return Ends(*(one if isinstance(one, int) else None for one in found))


async def leader_of(asked: Asked, where: TopicPartition) -> int | None:
    """None where nobody leads it."""
    try:
        return await asked.cluster.leader(where)
    except KafkaError:
        return None


async def _said(asked: Asked, where: TopicPartition) -> list[Said] | KafkaError:
    """Of the one log: why, plan, segments, what rounds wrote last; or why that is not said."""
    requests = [
        DescribeOutlookRequest(what=what, topic=where.topic, logs=(str(where),))
        for what in (EXPLAIN, PLAN_ROWS, SEGMENT_ROWS, LAST_GROUPS)
    ]
    try:
        return list(await asyncio.gather(*(ask_all(asked.cluster, one) for one in requests)))
    except KafkaError as e:
        return e


def _rows(said: Said, broker: int) -> list[Row]:
    return Said({broker: said.lines.get(broker, ())}).of(dict)


def _replica(broker: int, explained: Explained, tables: list[list[Row]], ends: Ends) -> Replica:
    plans, segments, groups = tables
    plan = plans[0] if plans else {}
    pieces = pieces_of(segments)
    parts = parts_of(pieces, plan.get("first_dirty"), plan.get("first_uncleanable"))
    offsets = {
        "log start": ends.start,
        "first dirty": plan.get("first_dirty"),
        "last stable": ends.last_stable,
        "high watermark": ends.high_watermark,
    }
    return Replica(
        broker, explained, plan, segments[-SEGMENTS_SHOWN:], parts,
        marks_of(pieces, parts, offsets), pending_of(segments), rounds_of(groups)[:ROUNDS_SHOWN],
    )  # fmt: skip


def pieces_of(segments: Sequence[Row]) -> list[Piece]:
    """A segment's end is the next one's base where there is no summary."""
    bases = [row["base_offset"] for row in segments]
    pieces = []
    for n, row in enumerate(segments):
        following = bases[n + 1] if n + 1 < len(bases) else None
        end = following if following is not None else row.get("end_offset")
        end = row["base_offset"] if end is None else end
        pieces.append(Piece(row["base_offset"], end, row["bytes"], row["sealed"]))
    return pieces


def pending_of(segments: Sequence[Row]) -> list[tuple[int, int]]:
    """By horizon, bytes of the batches that have one; segment by segment, by its earliest."""
    pending: dict[int, int] = {}
    for row in segments:
        horizon = row.get("horizon_earliest")
        if horizon is not None:
            pending[horizon] = pending.get(horizon, 0) + (row.get("horizon_bytes") or 0)
    return sorted(pending.items())


def rounds_of(groups: Sequence[Row]) -> list[Row]:
    """A row a round, newest first: what it removed, by reason, and how much smaller it left."""
    rounds: dict[str, dict[str, Any]] = {}
    for row in groups:
        one = rounds.setdefault(
            row["round_id"],
            {"round_id": row["round_id"], "committed": row["committed"], "removed": {},
             "before": 0, "after": 0, "stamped": 0},
        )  # fmt: skip
        for reason, records in row["removed"].items():
            one["removed"][reason] = one["removed"].get(reason, 0) + records
        one["before"] += max(row["bytes_before"], 0)
        one["after"] += max(row["bytes_after"], 0)
        one["stamped"] += row["stamped"]
    return sorted(rounds.values(), key=lambda one: one["committed"] or 0, reverse=True)
