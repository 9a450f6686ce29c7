"""Topics: all that one may see, and one of them with its partitions and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from lapse.base.errors import KafkaError, LapseError
from lapse.base.ids import check_topic_name
from lapse.client.admin import Admin
from lapse.client.outlook import ask_all
from lapse.client.settings import FROM_TOPIC, TOPIC, Resource
from lapse.web.asked import Asked, NotFound, Page
from lapse.wire.schema.describe_outlook import PLAN_ROWS, DescribeOutlookRequest

SHOWN = 200
PARTITIONS_SHOWN = 500


async def show_all(asked: Asked) -> Page:
    """Those whose name has `find` in it."""
    find = asked.text("find")
    found = await Admin(await asked.cluster.any_connection()).list_topics()
    chosen = [topic for topic in found if find.lower() in topic.name.lower()]
    is_part = asked.request.headers.get("hx-request") == "true"
    template = "topics_found.html" if is_part else "topics.html"
    values = {"here": "topics", "find": find, "topics": chosen[:SHOWN], "found": len(chosen)}
    return Page(template, values)


async def show(asked: Asked) -> Page:
    """Its partitions with what holds each back, and the settings that are its own."""
    name = topic_name(asked)
    connection = await asked.cluster.any_connection()
    admin = Admin(connection, login=asked.visitor.login)
    resource = Resource(TOPIC, name)
    topic, settings, (rows, silent) = await asyncio.gather(
        admin.describe_topic(name),
        admin.describe_configs([resource]),
        _plan_rows(asked, name),
    )
    config = settings[resource]
    own = (
        []
        if config.error is not None
        else [one for one in config.entries.values() if one.source == FROM_TOPIC]
    )
    return Page(
        "topic.html",
        {
            "here": "topics",
            "topic": topic,
            "partitions": topic.partitions[:PARTITIONS_SHOWN],
            "rows": rows,
            "silent": silent,
            "own": sorted(own, key=lambda one: one.name),
            "no_settings": config.error,
        },
    )


def topic_name(asked: Asked) -> str:
    """Of the address; raises NotFound where no topic can be called so."""
    name: str = asked.request.path_params["topic"]
    try:
        check_topic_name(name)
    except LapseError as e:
        raise NotFound(str(e)) from e
    return name


async def _plan_rows(
    asked: Asked, topic: str
) -> tuple[Mapping[int, list[Mapping[str, Any]]], Mapping[int, str] | str]:
    """By partition, a row of each broker that has it; and who says nothing, or why nobody does."""
    try:
        said = await ask_all(asked.cluster, DescribeOutlookRequest(what=PLAN_ROWS, topic=topic))
    except KafkaError as e:
        return {}, str(e)
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for row in said.of(dict):
        rows.setdefault(row["partition"], []).append(row)
    return rows, said.silent
