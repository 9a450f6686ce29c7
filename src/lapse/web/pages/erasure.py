"""Erasure: orders with their deadlines, what is proven of each, and the proofs, to keep."""

from __future__ import annotations

import re

from lapse.client.outlook import ask_all, ask_one
from lapse.lifecycle.outlook.erasures import Erasure, urgency
from lapse.web.asked import Asked, Download, NotFound, Page
from lapse.wire.schema.describe_outlook import ERASURES, PROOF, DescribeOutlookRequest

BROKER_MAX = (1 << 31) - 1
_PLAIN = re.compile(r"[a-zA-Z0-9._-]+")


async def show(asked: Asked) -> Page:
    """Of all brokers' folders; the most urgent first."""
    said = await ask_all(asked.cluster, DescribeOutlookRequest(what=ERASURES))
    orders = sorted(said.of(Erasure), key=urgency)
    return Page(
        "erasure.html",
        {
            "here": "erasure",
            "orders": orders,
            "left_out": sum({one.broker: one.left_out for one in orders}.values()),
            "now_ms": asked.clock.now_ms(),
            "silent": dict(sorted(said.silent.items())),
        },
    )


async def proof(asked: Asked) -> Download:
    """The file as it is: its signature covers every byte."""
    broker = asked.whole("broker", 0, BROKER_MAX)
    file, topic = asked.raw("file"), asked.raw("topic")
    name = file.rpartition("/")[2]
    if not _PLAIN.fullmatch(name):
        raise NotFound(f"{name}: no proof has such a name")
    request = DescribeOutlookRequest(what=PROOF, topic=topic, file=file)
    address = (await asked.cluster.brokers()).get(broker)
    if address is None:
        raise NotFound(f"broker {broker} is not there")
    pages = ask_one(await asked.cluster.at(address), request, set())
    lines = [line async for page in pages for line in page]
    if not lines:
        raise NotFound(f"{file}: broker {broker} has no such proof of {topic}")
    return Download(name, lines[0])
