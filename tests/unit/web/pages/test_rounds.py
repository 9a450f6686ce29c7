"""What services do and did, log by log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.lifecycle.round.receipt import Seconds
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause
from lapse.lifecycle.status.reports import ServiceProgress, append_reports, write_progress
from tests.support.web.pages import ask, node_with_pages
from tests.unit.lifecycle.status.test_reports import REPORT


async def test_reports_are_newest_first_and_of_one_log_where_it_is_named(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        assert "No lifecycle service has run here" in (await ask(node, "/ui/rounds")).text
        now_ms, fs = node.services.clock.now_ms(), RealFs()
        done = [
            replace(
                REPORT,
                log="a-0",
                committed_ms=now_ms - 9,
                bytes_freed=5 << 20,
                seconds=Seconds(0.25, 0.5, 0.125, 7.75),
            ),
            replace(
                REPORT, log="b-0", committed_ms=now_ms, error="no <luck>", io_per_dirty_byte=2.5
            ),
        ]
        append_reports(fs, tmp_path, done)
        with (tmp_path / "lapse-rounds.jsonl").open("ab") as file:
            file.write(b'{"round_id":"cut sh')
        running = ServiceProgress(
            "running", "2 rounds", 7, now_ms, bytes_done=1 << 20, bytes_total=4 << 20,
            eta_ms=now_ms + 60_000,
        )  # fmt: skip
        write_progress(fs, tmp_path, running)
        pause(fs, tmp_path, ["a-0"], Pause(EVERY_LOG, now_ms, now_ms + 10**8, "a <disk>"))
        page = await ask(node, "/ui/rounds")
        for words in (
            "<strong>running</strong>: 2 rounds",
            "1.0 MiB of 4.0 MiB",
            "a-0 paused since",
            "a &lt;disk&gt;",
            "The last 2",
            "no &lt;luck&gt;",
            ">5.0 MiB</td>",
            ">2.5</td>",
            ">0.25, 0.50, 0.12</td>",
            ">7.75</td>",
        ):
            assert words in page.text, words
        assert page.text.index(">b-0</a>") < page.text.index(">a-0</a>")
        one = await ask(node, "/ui/rounds?log=a-0")
        assert ">b-0</a>" not in one.text
        overview = await ask(node, "/ui")
        assert "5.0 MiB by the last 1 round" in overview.text
        assert "1.0 MiB of 4.0 MiB" in overview.text
