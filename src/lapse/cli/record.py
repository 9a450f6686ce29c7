"""`lapse record produce | consume`: a few records to a topic, or from one, by hand.

Small helpers for looking and trying. Whoever moves many records has `lapse copy`, the Spark source,
or a client of Kafka's.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Semaphore, Thread
from typing import BinaryIO

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, unreadable
from lapse.base.ids import TopicPartition
from lapse.base.nearest import did_you_mean
from lapse.base.readable import readable
from lapse.base.setting import INT_MAX, LONG_MAX
from lapse.base.typed import EPOCH, moment_of, whole
from lapse.cli.confirm import is_terminal
from lapse.cli.quantities import moment_text, whole_number
from lapse.cli.remote import Connection, add_remote, connection
from lapse.client.batches import RecordMetadata
from lapse.client.consumer import Consumer, ConsumerConfig
from lapse.client.offsets import EARLIEST, LATEST, Where
from lapse.client.producer import Producer
from lapse.client.record import ConsumerRecord

EXAMPLES = """\
examples:
  echo 'u-17:{"name": "Ada"}' | lapse record produce users --key-separator :
  lapse record produce users --key-separator : --null NULL < lines     # k:NULL is a tombstone
  lapse record consume users                                 all there is, then it ends
  lapse record consume users --from 1h --key u-17
  lapse record consume users --from end --follow --json
"""
_POLL_MS = 500
_AHEAD = 1000  # records on their way


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("topic", metavar="TOPIC")
    add_remote(common)
    common.add_argument("--json", action="store_true", help="one JSON object a record")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    what = "write each line as a record; ends with the input"
    add = verbs.add_parser("produce", parents=[common], help=what, description=what).add_argument
    add("--file", type=Path, metavar="FILE", help="lines of this file (default: standard input)")
    add(
        "--key-separator",
        metavar="TEXT",
        help="what is before its first place in a line is the key",
    )
    add("--null", metavar="TEXT", help="a value of this text is none: the record is a tombstone")
    add("--partition", type=whole_number(0, INT_MAX), metavar="N", help="all to this one")
    what = "show records, up to where the topic ends now"
    add = verbs.add_parser("consume", parents=[common], help=what, description=what).add_argument
    add("--partition", type=whole_number(0, INT_MAX), action="append", default=[], metavar="N",
        help="only this one; may be repeated")  # fmt: skip
    add("--from", dest="from_", default="beginning", metavar="WHERE",
        help="beginning, end, an offset, a time with a zone, or an age such as 1h "
        "(default: %(default)s)")  # fmt: skip
    add("-n", "--number", type=whole_number(1), metavar="N", help="end after so many records")
    add("--key", metavar="K", help="only records with this key")
    add("--follow", action="store_true", help="wait for more, until Ctrl-C")
    add("--uncommitted", action="store_true", help="records of open and aborted transactions, too")


def run(args: argparse.Namespace) -> int:
    """Exit 0 once all lines are written, or all records shown."""
    at = connection(args)
    if args.verb == "consume":
        asyncio.run(_consume(args, at))
        return 0
    return _produce(args, at)


# --- produce --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """How a line is a record."""

    key_separator: bytes | None
    null: bytes | None

    def parts(self, line: bytes, number: int) -> tuple[bytes | None, bytes | None]:
        """Key and value. Raises ConfigError."""
        key, value = None, line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                text = readable(self.key_separator)
                raise ConfigError(f"line {number} has no {text} (--key-separator)")
        return key, None if value == self.null else value


def _produce(args: argparse.Namespace, at: Connection) -> int:
    if args.key_separator == "":
        raise ConfigError("--key-separator: allowed is a text of at least one character")
    how = Line(_encoded(args.key_separator), _encoded(args.null))
    with contextlib.ExitStack() as stack:
        if args.file is None:
            if sys.stdin is None:
                raise ConfigError("there is no standard input: --file names a file of lines")
            source: BinaryIO = sys.stdin.buffer
            if is_terminal(sys.stdin):
                print("one record a line; Ctrl-D ends", file=sys.stderr)
        else:
            try:
                source = stack.enter_context(args.file.open("rb"))
            except OSError as e:
                raise unreadable(e, args.file) from e
        written = asyncio.run(_send(args, at, how, source))
    if not args.json:
        print(f"{written} records written to {args.topic}")
    return 0


async def _send(args: argparse.Namespace, at: Connection, how: Line, source: BinaryIO) -> int:
    """How many lines are records of the topic now."""
    written = 0
    waiting: deque[asyncio.Future[RecordMetadata]] = deque()

    def tell(where: RecordMetadata) -> None:
        nonlocal written
        written += 1
        if args.json:
            place = where.partition
            told = {"topic": place.topic, "partition": place.partition, "offset": where.offset}
            print(json.dumps(told), flush=True)

    async with Producer(at.bootstrap, login=at.login) as producer:
        with _topics_named(args.topic):
            await producer.partition_count(args.topic, waits=False)
        number = 0
        async for line in _fed(_lines(source, str(args.file or "standard input"))):
            number += 1
            key, value = how.parts(line, number)
            waiting.append(await producer.send(args.topic, key, value, partition=args.partition))
            while waiting and (waiting[0].done() or len(waiting) > _AHEAD):
                tell(await waiting.popleft())
        await producer.flush()
        while waiting:
            tell(await waiting.popleft())
    return written


async def _fed(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Lines as they come, from a thread that nobody waits for: Ctrl-C ends a wait for a line.

    Raises what reading them raises.
    """
    loop, room = asyncio.get_running_loop(), Semaphore(_AHEAD)
    fed: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    def put(one: bytes | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(fed.put_nowait, one)

    def feed() -> None:
        try:
            for line in lines:
                room.acquire()
                put(line)
        except Exception as e:  # noqa: BLE001  (raised in the loop, which would wait for ever)
            put(e)
        put(None)

    Thread(target=feed, name="lines", daemon=True).start()
    while (one := await fed.get()) is not None:
        if isinstance(one, Exception):
            raise one
        room.release()
        yield one


def _lines(source: BinaryIO, name: str) -> Iterator[bytes]:
    """Without their ends. Raises StorageError."""
    try:
        for line in source:
            yield line.removesuffix(b"\n").removesuffix(b"\r")
    except OSError as e:
        raise unreadable(e, name) from e


# --- consume --------------------------------------------------------------------------------------


async def _consume(args: argparse.Namespace, at: Connection) -> None:
    where, wanted = _where(args.from_, SystemClock().now_ms()), _encoded(args.key)
    config = ConsumerConfig(read_committed=not args.uncommitted, auto_offset_reset="earliest")
    show = _as_json if args.json else _as_text
    async with Consumer(at.bootstrap, config, login=at.login) as consumer:
        partitions = await _partitions(consumer, args.topic, args.partition)
        ends = await consumer.end_offsets(partitions)
        # Beyond its end a log has nothing: from there on means from the end on, not from the first.
        await consumer.assign(
            {one: min(where, at) if isinstance(where, int) else where for one, at in ends.items()}
        )
        shown = 0
        async for record in _records(consumer, ends, follow=args.follow):
            if wanted is not None and record.key != wanted:
                continue
            print(show(record), flush=args.follow)
            shown += 1
            if shown == args.number:
                return


async def _records(
    consumer: Consumer, ends: Mapping[TopicPartition, int], *, follow: bool
) -> AsyncIterator[ConsumerRecord]:
    """Up to these ends, or for ever."""
    while follow or any(consumer.position(one) < end for one, end in ends.items()):
        for record in await consumer.poll(_POLL_MS):
            if follow or record.offset < ends[record.partition]:
                yield record


async def _partitions(
    consumer: Consumer, topic: str, numbers: Sequence[int]
) -> list[TopicPartition]:
    """Raises KafkaError where the topic, or one of them, is not there."""
    topics = await consumer.topics()
    if topic not in topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise KafkaError(code, f"there is no topic {topic}{did_you_mean(topic, topics)}")
    known = sorted(topics[topic].leaders)
    for number in numbers:
        if number not in known:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"topic {topic} has no partition {number}")
    return [TopicPartition(topic, number) for number in numbers or known]


def _where(text: str, now_ms: int) -> int | Where:
    named = {"beginning": EARLIEST, "end": LATEST}.get(text)
    if named is not None:
        return named
    if text.isascii() and text.isdecimal():
        offset = whole(text)
        return LONG_MAX if offset is None else min(offset, LONG_MAX)  # beyond any end
    found = moment_of(text, EPOCH + timedelta(milliseconds=now_ms))
    if found is None:
        raise ConfigError(
            f"--from {text}: allowed is beginning, end, an offset, a time with a zone such as "
            "2026-01-31T00:00:00Z, or an age such as 30d, 12h, 90m, 45s"
        )
    return found


def _as_text(record: ConsumerRecord) -> str:
    """Tabs between: partition, offset, time, key, value."""
    key = "(no key)" if record.key is None else readable(record.key)
    value = "" if record.value is None else readable(record.value)
    if record.is_tombstone:
        value = f"(tombstone) {value}".rstrip()
    time = "-" if record.timestamp < 0 else moment_text(record.timestamp)
    fields = (str(record.partition.partition), str(record.offset), time, key, value)
    return "\t".join(fields)


def _as_json(record: ConsumerRecord) -> str:
    headers = [{"name": name, **_bytes_as("value", data)} for name, data in record.headers]
    return json.dumps(
        {
            "topic": record.partition.topic,
            "partition": record.partition.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "create_time": record.create_time,
            "append_time": record.append_time,
            **_bytes_as("key", record.key),
            **_bytes_as("value", record.value),
            "is_tombstone": record.is_tombstone,
            "headers": headers,
        }
    )


def _bytes_as(name: str, data: bytes | None) -> dict[str, str | None]:
    """Text where it is some, in UTF-8; else nothing is lost in base64."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


# --- both -----------------------------------------------------------------------------------------


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _topics_named(topic: str) -> Iterator[None]:
    """A refusal names the topic."""
    try:
        yield
    except KafkaError as e:
        if e.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            said = f"there is no topic {topic}: `lapse topic create {topic}` makes it"
            raise KafkaError(e.code, said) from e
        raise
