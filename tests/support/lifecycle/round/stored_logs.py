"""Logs in each format that their readers know, and rounds of them by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lapse.base.config import TopicConfig
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW

T = TopicPartition("t", 0)

BASE = {
    "cleanup.policy": "compact", "internal.segment.bytes": "2000", "delete.retention.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "0",
}  # fmt: skip

OLD = {0: "0.9.0", 1: "0.10.2"}


def settings(magic: int, **more: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {**BASE, "message.format.version": OLD.get(magic, "3.0"), **named}


def wrapped(
    first: int, magic: int, codec: Codec, *pairs: tuple[bytes, bytes | None], append_time: bool
) -> bytes:
    """One wrapper, or as many messages; times NOW + offset, where there are any."""
    found = [
        Message(first + n, NOW + first + n if magic else -1, key, value)
        for n, (key, value) in enumerate(pairs)
    ]
    kind = TimestampType(append_time and magic == 1)
    return build_messages(found, MessageSpec(magic, codec, kind, NOW + 1_000_000))


def write_log(
    path: Path, magic: int, codec: Codec, config: TopicConfig, *, append_time: bool = False
) -> None:
    """Wrappers of four: two keys that come again each time, one of its own, a tombstone."""
    with_log(path, config, lambda log: fill(log, magic, codec, append_time))


def fill(log: PartitionLog, magic: int, codec: Codec, append_time: bool) -> None:
    for n in range(30):
        own = b"own%d" % n
        pairs = [(b"a", b"%d" % n), (own, own), (b"b", b"%d" % n * 20), (b"dead%d" % (n % 7), None)]
        data = wrapped(4 * n, magic, codec, *pairs, append_time=append_time)
        log.append_raw(data, now_ms=NOW)
    log.roll(NOW)


def with_log(path: Path, config: TopicConfig, do: Any) -> None:
    directory = LogDirectory.open(path, LogEnv(RealFs(), ManualClock(NOW)))
    known = T in directory.partitions()
    do(directory.open_log(T, config) if known else directory.create_log(T, config))
    directory.close()


def clean(
    capsys: pytest.CaptureFixture[str], path: Path, named: dict[str, str], now: int, *more: str
) -> Any:
    said = [word for name, value in named.items() for word in ("-c", f"{name}={value}")]
    capsys.readouterr()
    words = ["clean", str(path), "--engine", "inline", "--json", *said, "--now", str(now), *more]
    assert main(words) == 0
    [line] = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    return line
