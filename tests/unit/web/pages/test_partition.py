"""What a partition's page is made of, from the rows that brokers say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lapse.web.bar import Piece
from lapse.web.pages import partition
from lapse.web.pages.partition import pending_of, pieces_of, rounds_of
from tests.support.broker.running import batch_of, connect, create, produce
from tests.support.web.pages import ask, node_with_pages


def segment(base: int, size: int, end: int | None, **more: Any) -> dict[str, Any]:
    return {"base_offset": base, "bytes": size, "end_offset": end, "sealed": True, **more}


def test_a_segment_without_a_summary_ends_where_the_next_begins() -> None:
    rows = [segment(0, 5, None), segment(10, 6, 20), segment(20, 7, None, sealed=False)]
    assert pieces_of(rows) == [
        Piece(0, 10, 5, True),
        Piece(10, 20, 6, True),
        Piece(20, 20, 7, False),
    ]


def test_what_waits_is_added_up_by_horizon() -> None:
    rows = [
        segment(0, 1, 1, horizon_earliest=7, horizon_bytes=30),
        segment(1, 1, 2, horizon_earliest=5, horizon_bytes=None),
        segment(2, 1, 3, horizon_earliest=7, horizon_bytes=12),
        segment(3, 1, 4),
    ]
    assert pending_of(rows) == [(5, 0), (7, 42)]


def test_a_round_is_one_row_whatever_it_removed() -> None:
    names = ("round_id", "committed", "removed", "bytes_before", "bytes_after", "stamped")

    def row(*values: Any) -> dict[str, Any]:
        return dict(zip(names, values, strict=True))

    rows = [
        row("r1", 5, {"superseded": 3, "tombstone": 1}, 90, 40, 2),
        row("r1", 5, {"superseded": 4}, 10, 5, 0),
        row("r2", 9, {}, -1, 7, 1),
    ]
    second, first = rounds_of(rows)
    assert first["removed"] == {"superseded": 7, "tombstone": 1}
    assert (first["before"], first["after"], first["stamped"]) == (100, 45, 2)
    assert (second["round_id"], second["removed"], second["before"]) == ("r2", {}, 0)


async def test_the_page_says_where_the_log_is_and_why_it_is_not_cleaned(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        await create(node, "t", cleanup_policy="compact")
        async with await connect(node) as connection:
            await produce(connection, "t", (0, batch_of(b"one", b"two")))
        page = await ask(node, "/ui/topics/t/0")
        assert page.status == 200
        for words in (
            "On broker 0, its leader",
            "Why it is not cleaned",
            "all that is dirty is in the active segment",
            'aria-label="The log by bytes: active',
            "<dt>High watermark</dt><dd>2</dd>",
            "no bound: max.compaction.lag.ms is not set",
        ):
            assert words in page.text, words


async def test_a_leader_that_hangs_leaves_its_ends_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other brokers say of the log is shown all the same."""
    never = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        await never.wait()

    monkeypatch.setattr(partition, "BROKER_SECONDS_MAX", 0.2)
    monkeypatch.setattr(partition, "list_offsets", hang)
    async with node_with_pages(tmp_path) as node:
        await create(node, "t", cleanup_policy="compact")
        page = await ask(node, "/ui/topics/t/0")
    assert page.status == 200, page.text
