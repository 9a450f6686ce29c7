"""What must hold at the end: every promise that a client was given, and what replicas owe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.client.consumer import EARLIEST, Consumer, ConsumerConfig
from lapse.kernels.layout import CONTROL
from lapse.log.partition_log import PartitionLog
from lapse.log.repair import look
from lapse.records.batch import records_of, scan_prefix
from tests.simulation.cluster.history import Broken, History
from tests.support.log.logs import bytes_between

Records = dict[int, tuple[bytes, bytes | None]]  # by offset: key, value


async def read_all(
    bootstrap: str, partitions: list[TopicPartition], *, committed: bool
) -> dict[TopicPartition, Records]:
    """From the beginning of each log to where it ends now."""
    found: dict[TopicPartition, Records] = {tp: {} for tp in partitions}
    config = ConsumerConfig(read_committed=committed)
    async with Consumer(bootstrap, config) as consumer:
        ends = await consumer.end_offsets(partitions)
        await consumer.assign(dict.fromkeys(partitions, EARLIEST))
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for record in await consumer.poll(500):
                found[record.partition][record.offset] = record.key or b"", record.value
    return found


def check_log(history: History, tp: TopicPartition, found: Records, log_start: int) -> None:
    """A topic that is not compacted: what was acknowledged is there, once, in order."""
    deleted = history.deleted[tp]
    if log_start > history.asked[tp]:
        raise Broken(f"{tp}: begins at {log_start}, and {history.asked[tp]} was all that was asked")
    if log_start < deleted:
        raise Broken(f"{tp}: begins at {log_start}, and all before {deleted} was called gone")
    for offset, one in history.acked[tp].items():
        if offset >= max(deleted, log_start) and offset not in found:
            raise Broken(f"{tp}@{offset}: acknowledged and not there: {one}")
    for offset, (_, value) in found.items():
        if offset < deleted:
            raise Broken(f"{tp}@{offset}: was called gone, and is there: {value!r}")
    check_order(history, tp, found)


def check_order(history: History, tp: TopicPartition, found: Records) -> None:
    """What idempotent producers have sent is there once, and in the order of sending."""
    last: defaultdict[str, int] = defaultdict(lambda: -1)
    for offset, (_, value) in sorted(found.items()):
        if value is None:
            continue
        one = history.sent.get((tp, value))
        if one is None:
            raise Broken(f"{tp}@{offset}: nobody has sent {value!r}")
        if one.writer.startswith("idempotent"):
            if one.number <= last[one.writer]:
                raise Broken(f"{tp}@{offset}: {value!r} comes after number {last[one.writer]}")
            last[one.writer] = one.number


def check_table(history: History, tp: TopicPartition, found: Records) -> None:
    """A compacted topic: the last record of each key, or, after a tombstone, none."""
    newest: dict[bytes, int] = {}
    for offset, (key, _) in found.items():
        newest[key] = max(newest.get(key, -1), offset)
    for offset, one in history.acked[tp].items():
        known = newest.get(one.key, -1)
        gone = known == -1 and (one.value is None or (tp, one.key) in history.unsure)
        later = (o for o, w in history.acked[tp].items() if w.key == one.key and o > offset)
        if known < offset and not gone and next(later, None) is None:
            raise Broken(f"{tp}@{offset}: acknowledged, the last of its key, not there: {one}")
    for key, offset in newest.items():
        newer = [o for o, (k, _) in history.seen[tp].items() if k == key and o > offset]
        if newer:
            raise Broken(f"{tp}: {key!r} is back at {offset}, though it was at {max(newer)}")
    check_order(history, tp, found)


def check_transactions(history: History, committed: Mapping[TopicPartition, Records]) -> None:
    """All of a transaction, or nothing."""
    there: defaultdict[int, set[bytes]] = defaultdict(set)
    for tp, records in committed.items():
        for _, value in records.values():
            if value is not None and value in history.transactional:
                there[id(history.transactional[value])].add(value)
        del tp
    for name, transaction in history.transactions.items():
        visible = there[id(transaction)]
        # What was deleted before cannot be told from what was never there.
        expected = {value for value, tp in transaction.values.items() if not history.deleted[tp]}
        if transaction.ended is True and expected - visible:
            raise Broken(f"{name!r} was committed; not there: {expected - visible}")
        seen = visible | (transaction.values.keys() & history.committed)
        if not transaction.to_be_committed and seen:
            raise Broken(f"{name!r} was aborted, or its end never asked for; seen: {seen}")
        if visible and expected - visible:
            raise Broken(f"{name!r}: only {visible} is there, not {expected - visible}")


# --- replicas -------------------------------------------------------------------------------------


def records_in(data: bytes, tp: TopicPartition) -> Records:
    found: Records = {}
    for row in scan_prefix(data)[0]:
        if row["attributes"] & CONTROL:
            continue
        for record in records_of(data, row, str(tp)):
            found[record.offset] = record.key or b"", record.value
    return found


def split_at(data: bytes, start: int, tp: TopicPartition) -> tuple[str, bytes]:
    """What counts of the batch that `start` is in, and all that follows, byte by byte.

    A round of one replica may have taken deleted records from that batch (L11).
    """
    rows = [row for row in scan_prefix(data)[0] if row["base_offset"] < start]
    size = sum(int(row["size"]) for row in rows)
    counting = {at: what for at, what in records_in(data[:size], tp).items() if at >= start}
    return repr(counting), data[size:]


def check_files(log_dir: Path) -> None:
    """All has been read that was damaged, and nothing else is taken for damaged."""
    found = look(log_dir, reads_all=True)
    if found:
        raise Broken(f"{log_dir}: {found}")


def check_replicas(
    history: History, tp: TopicPartition, logs: Mapping[int, PartitionLog], *, compacted: bool
) -> None:
    """All replicas are in sync: they are the same, up to their own cleaning."""
    ends = {n: (log.log_end_offset, log.high_watermark) for n, log in logs.items()}
    if len(set(ends.values())) > 1:
        raise Broken(f"{tp}: end and high watermark differ: {ends}")
    starts = {n: log.log_start_offset for n, log in logs.items()}
    if min(starts.values()) < history.deleted[tp]:
        raise Broken(f"{tp}: {starts}, and all before {history.deleted[tp]} was called gone")
    # A deletion that nobody was told of may be undone by an election, as in Kafka.
    start = max(starts.values())
    contents = {n: bytes_between(log, start, log.high_watermark) for n, log in logs.items()}
    if not compacted:
        same = {split_at(data, start, tp) for data in contents.values()}
        if len(same) > 1:
            raise Broken(f"{tp}: replicas differ: { {n: len(c) for n, c in contents.items()} }")
        return
    for n, data in contents.items():
        try:
            found = records_in(data, tp)
        except LapseError as e:
            raise Broken(f"{tp} at broker {n}: {e}") from e
        for offset, (key, value) in found.items():
            history.was_read(tp, offset, key, value)
        check_table(history, tp, found)
