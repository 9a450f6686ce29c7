"""Records by offset, by time and by key; what is foreign is only text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.range_reader import OffsetRange
from lapse.records.builder import NewRecord, build_batch
from lapse.web.asked import BadQuestion
from lapse.web.pages import records
from lapse.web.pages.records import keys_of, look, parse_time
from tests.support.broker.running import connect, create, produce
from tests.support.web.pages import Answer, ask, node_with_pages

BEGIN = 1_700_000_000_000
NOW = datetime(2026, 11, 29, tzinfo=UTC)
HOSTILE = b"<script>alert(1)</script>\x00\x1b[2J\xff"


@asynccontextmanager
async def filled(tmp_path: Path) -> AsyncIterator[Node]:
    """Thirty records, a second apart, in three batches; then a tombstone and a hostile one."""
    async with node_with_pages(tmp_path) as node:
        await create(node, "t", cleanup_policy="compact")
        async with await connect(node) as connection:
            for n in range(3):
                some = range(10 * n, 10 * n + 10)
                made = [NewRecord(b"k%d" % (m % 4), b"v%d" % m, BEGIN + 1000 * m) for m in some]
                await produce(connection, "t", (0, build_batch(made)))
            last = [
                NewRecord(b"gone", None, BEGIN + 30_000),
                NewRecord(HOSTILE, HOSTILE, BEGIN + 31_000, (("<i>", HOSTILE),)),
            ]
            await produce(connection, "t", (0, build_batch(last)))
        yield node


def offsets(page: Answer) -> list[int]:
    assert page.status == 200, page.text
    links = page.text.split("/records/")[1:]
    return [int(link.split('"')[0]) for link in links]


LOOKS = [
    ("count=3", [0, 1, 2]),
    ("from=7&count=5", [7, 8, 9, 10, 11]),
    ("from=start&count=1", [0]),
    ("from=end&count=2", [30, 31]),
    ("from=99", []),
    ("key=k3", [3, 7, 11, 15, 19, 23, 27]),
    ("key=k3&from=8&count=2", [11, 15]),
    ("key=none", []),
    ("time=2023-11-14T22:13:40Z&count=1", [20]),
    (f"time={BEGIN + 29_500}&count=1", [30]),
    ("time=2030-01-01", []),
    ("key=%3Cscript%3Ealert(1)%3C/script%3E%5Cx00%5Cx1b[2J%5Cxff", [31]),
]


async def test_by_offset_time_and_key(tmp_path: Path) -> None:
    async with filled(tmp_path) as node:
        for query, found in LOOKS:
            page = await ask(node, f"/ui/topics/t/0/records?{query}")
            assert offsets(page) == found, query


async def test_the_batch_that_the_range_ends_in_is_not_shown_whole(tmp_path: Path) -> None:
    """What came since the end was asked for may belong to a transaction that is undecided."""
    async with filled(tmp_path) as node:
        address = node.services.address
        async with Cluster(parse_bootstrap(f"{address.host}:{address.port}")) as cluster:
            found = await look(cluster, OffsetRange(TopicPartition("t", 0), 4, 13), 50, None)
    assert [one.offset for one in found.records] == list(range(4, 13))
    assert found.next_offset is None


async def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    async with filled(tmp_path) as node:
        page = await ask(node, "/ui/topics/t/0/records?key=k1&count=3")
        assert offsets(page) == [1, 5, 9]
        assert "records?from=13&amp;count=3&amp;key=k1" in page.text
        last = await ask(node, "/ui/topics/t/0/records?from=13&count=9&key=k1")
        assert offsets(last) == [13, 17, 21, 25, 29]
        assert "Go on" not in last.text


async def test_a_rare_key_is_not_searched_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "READ_BYTES_MAX", 1)
    monkeypatch.setattr(records, "LIMITS", records.FetchLimits(partition_bytes_max=100))
    async with filled(tmp_path) as node:
        page = await ask(node, "/ui/topics/t/0/records?key=none")
        assert "No record of this key was found" in page.text
        assert "Go on at offset 10" in page.text


async def test_tombstones_both_times_and_what_is_hostile(tmp_path: Path) -> None:
    async with filled(tmp_path) as node:
        page = await ask(node, "/ui/topics/t/0/records?from=30")
        assert page.text.count('<strong class="tombstone">tombstone</strong>') == 1
        assert "2023-11-14 22:13:50 UTC" in page.text  # created; appended is now
        assert f"{datetime.now(UTC):%Y-%m-%d}" in page.text
        assert "<script>alert" not in page.text
        assert page.text.count("&lt;script&gt;alert(1)&lt;/script&gt;\\x00\\x1b[2J\\xff") == 3
        assert "<b>&lt;i&gt;</b>" in page.text


async def test_what_becomes_of_one(tmp_path: Path) -> None:
    async with filled(tmp_path) as node:
        page = await ask(node, "/ui/topics/t/0/records/3")
        assert "<strong>There.</strong>" in page.text
        beyond = await ask(node, "/ui/topics/t/0/records/99")
        assert "<strong>Not yet.</strong>" in beyond.text


def test_what_is_typed_may_be_meant_as_bytes() -> None:
    assert keys_of("k1") == {b"k1"}
    assert keys_of("Grüße") == {"Grüße".encode()}
    assert keys_of(r"a\x00\n\u200b") == {rb"a\x00\n\u200b", b"a\x00\n\xe2\x80\x8b"}
    assert keys_of(r"\U0010ffff\U00110000\U000fffff\U01000000") == {
        rb"\U0010ffff\U00110000\U000fffff\U01000000",
        "\U0010ffff".encode() + rb"\U00110000" + "\U000fffff".encode() + rb"\U01000000",
    }, "beyond Unicode there is nothing that it could mean"
    assert keys_of(r"\xzz\ud800") == {rb"\xzz\ud800", rb"\xzz?"}


@pytest.mark.parametrize("text", ["", "x", "1969-12-31", "99999999999999999999", "2026-13-01"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(BadQuestion, match="allowed is a time"):
        parse_time(text, NOW)


def test_times() -> None:
    assert parse_time("30m", NOW) == NOW - timedelta(minutes=30)
    assert parse_time("2026-11-29T12:00", NOW) == datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert parse_time("2026-11-29T12:00+02:00", NOW).timestamp() == 1_795_946_400
    assert parse_time("1500", NOW) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
