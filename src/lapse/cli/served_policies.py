"""Settings of the logs that a command is about, from their directory or their broker.

A broker that serves them is asked with `--bootstrap-server` of plan and explain.

What stands in a broker's properties file is in no metadata, and a running Kafka may hold settings
that its log on disk does not show yet; DescribeConfigs answers what is in force. A log of which the
broker knows no topic has no policy: it is not judged.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lapse.base.config import SEGMENT_BYTES_MIN, TINY_SEGMENTS, known_topic_settings, topic_setting
from lapse.base.errors import ErrorCode
from lapse.base.typed import whole
from lapse.cli import options
from lapse.cli.remote import connection
from lapse.client.admin import Admin
from lapse.client.login import PLAINTEXT, Login
from lapse.client.settings import FROM_TOPIC, TOPIC, ConfigEntry, Resource, ResourceConfig
from lapse.metadata.policies import POLICY, Policies, look_for_policies

TOPICS_AT_ONCE = 500


def ask_broker(
    address: str, topics: Sequence[str], policies: Policies, who: Login = PLAINTEXT
) -> Policies:
    """`policies`, with the broker's word instead of what lies in the directory.

    `address`: HOST:PORT, or several separated by commas, of which any will do. Raises
    ConnectionLost, UnsupportedVersion, and KafkaError where the broker refuses.
    """
    configs = asyncio.run(_ask(address, topics, who))
    overrides: dict[str, dict[str, str]] = {}
    defaults: dict[str, str] = {}
    for name, config in configs.items():
        if config.error is None:
            overrides[name], below = _settings(config.entries)
            defaults |= below
        elif config.error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise config.error
    return replace(policies, topics=overrides, defaults=defaults, source=f"the broker at {address}")


async def _ask(address: str, topics: Sequence[str], who: Login) -> dict[str, ResourceConfig]:
    configs = {}
    async with await Admin.open(address, login=who) as admin:
        for first in range(0, len(topics), TOPICS_AT_ONCE):
            some = [Resource(TOPIC, name) for name in topics[first : first + TOPICS_AT_ONCE]]
            found = await admin.describe_configs(some)
            configs.update({resource.name: config for resource, config in found.items()})
    return configs


def _settings(entries: Mapping[str, ConfigEntry]) -> tuple[dict[str, str], dict[str, str]]:
    """A topic's own settings, its policy in any case, and what it has from its broker."""
    known = known_topic_settings({n: e.value for n, e in entries.items() if e.value is not None})
    own: dict[str, str] = {}
    below: dict[str, str] = {}
    for name, text in known.items():
        if entries[name].source == FROM_TOPIC or name == POLICY:
            own[_named(name, text)] = text
        elif name != TINY_SEGMENTS.name and (synonyms := topic_setting(name).synonyms):
            below[synonyms[0][0]] = text
    return own, below


def _named(name: str, text: str) -> str:
    """Kafka before KIP-1030 allowed segments that are tiny here, under another name."""
    segment_bytes = whole(text) if name == "segment.bytes" else None
    tiny = segment_bytes is not None and segment_bytes < SEGMENT_BYTES_MIN
    return TINY_SEGMENTS.name if tiny else name


def policies_in(logdir: Path, args: argparse.Namespace) -> Policies:
    """Settings of the logs in a directory, by `-c` and by what its metadata says.

    Where a broker was named, by what that says. Metadata that cannot be read is reported through
    `trouble`.
    """
    said, given_defaults = options.settings(args.settings)
    found = look_for_policies(logdir, said, given_defaults)
    address: str | None = getattr(args, "bootstrap_server", None)
    if address is None:
        return found
    topics = sorted({p.topic for p in options.partitions_in(logdir)})
    return ask_broker(address, topics, found, connection(args).login)
