"""Rounds: what each broker's service does now, and what its last rounds did and cost."""

from __future__ import annotations

import asyncio

from lapse.base.decoding import from_json
from lapse.client.outlook import ask_all
from lapse.lifecycle.status.reports import RoundReport
from lapse.lifecycle.status.snapshot import Status
from lapse.web.asked import Asked, Page
from lapse.wire.schema.describe_outlook import REPORTS, ROUNDS, DescribeOutlookRequest

SHOWN = 100


async def show(asked: Asked) -> Page:
    """Of all brokers; with `log` in the address of that log alone."""
    log = asked.text("log")
    now, done = await asyncio.gather(
        ask_all(asked.cluster, DescribeOutlookRequest(what=ROUNDS)),
        ask_all(asked.cluster, DescribeOutlookRequest(what=REPORTS)),
    )
    reports = [
        (broker, from_json(line, RoundReport))
        for broker, lines in done.lines.items()
        for line in lines
    ]
    chosen = [(broker, one) for broker, one in reports if not log or one.log == log]
    chosen.sort(key=lambda row: row[1].committed_ms, reverse=True)
    return Page(
        "rounds.html",
        {
            "here": "rounds",
            "log": log,
            "brokers": {
                broker: from_json(lines[0], Status) for broker, lines in sorted(now.lines.items())
            },
            "silent": dict(sorted(now.silent.items())),
            "reports": chosen[:SHOWN],
            "reports_all": len(chosen),
        },
    )
