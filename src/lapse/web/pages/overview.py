"""Overview: deadlines at risk first, then topics, rounds that run, and what they have freed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import accumulate

from lapse.client.outlook import ask_all
from lapse.lifecycle.outlook.overview import Overview, together
from lapse.lifecycle.status.conditions import LATE_WORDS
from lapse.lifecycle.status.reports import RoundReport
from lapse.web.asked import Asked, Page
from lapse.wire.schema.describe_outlook import OVERVIEW, REPORTS, DescribeOutlookRequest

TOPICS_SHOWN, AHEAD_SHOWN = 20, 10


async def show(asked: Asked) -> Page:
    """Of all brokers; one that says nothing is named."""
    said, reports = await asyncio.gather(
        ask_all(asked.cluster, DescribeOutlookRequest(what=OVERVIEW)),
        ask_all(asked.cluster, DescribeOutlookRequest(what=REPORTS)),
    )
    return page_of(said.of(Overview), reports.of(RoundReport), {**reports.silent, **said.silent})


def page_of(
    said: Sequence[Overview], reports: Sequence[RoundReport], silent: Mapping[int, str]
) -> Page:
    """Of what those say who answered, and who did not."""
    overviews = sorted(said, key=lambda one: one.broker)
    done = [one for one in reports if one.error is None]
    return Page(
        "overview.html",
        {
            "here": "overview",
            "all": together(overviews),
            "brokers": overviews,
            "silent": dict(sorted(silent.items())),
            "topics_shown": TOPICS_SHOWN,
            "ahead_shown": AHEAD_SHOWN,
            "kinds": LATE_WORDS,
            "freed": freed_series(done),
            "rounds_done": len(done),
            "bytes_freed": sum(one.bytes_freed for one in done),
        },
    )


def freed_series(reports: Sequence[RoundReport]) -> list[list[float]]:
    """Seconds, and the bytes that rounds have freed until then, of those that are kept."""
    by_time = sorted(reports, key=lambda one: one.committed_ms)
    times = [one.committed_ms / 1000 for one in by_time]
    return [times, list(accumulate(one.bytes_freed for one in by_time))]
