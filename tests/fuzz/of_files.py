"""Targets made of one small file: indexes, snapshots, checkpoints, summaries, ledgers, receipts.

Also of what the coordinators' topics hold: their records have the same few bytes and no checksum.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.cli.dump_files import dump_side_file
from lapse.coordination.records import offsets, transactions
from lapse.coordination.records.entries import Entry, decode_entry, encode_entry
from lapse.coordination.records.subscription import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_versioned,
    write_versioned,
)
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.commit import CommitEnv, finish_commit, intent_path
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.stamps import StampCache
from lapse.log import checkpoints
from lapse.log.append_times import (
    append_times_path,
    encode,
    is_append_times,
    parse,
    read_append_times,
)
from lapse.log.epochs import LeaderEpochs
from lapse.log.offset_index import OffsetIndex
from lapse.log.producers import Producers
from lapse.log.segment import load_indexes, segment_path
from lapse.log.sketch import decode_sketch, estimate
from lapse.log.summary import read_clock, read_keys, read_summary, summary_path
from lapse.log.time_index import TimeIndex
from lapse.log.txn_index import TxnIndex, encode_entries, parse_entries
from lapse.records.batch import records_of, scan_batches
from lapse.testing.clock import ManualClock
from tests.fuzz import corpus, mutate
from tests.fuzz.target import Files, Target, one_file, refused, told

FS = RealFs()
_OFFSETS = (0, 1, 99, 160, 333, 1 << 31, (1 << 31) - 1, (1 << 62), -1)
_TIMES = (0, -1, corpus.NOW, corpus.NOW + 100, 1_750_000_000_000, (1 << 63) - 1, -(1 << 63))


def _mutated(pattern: str) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        seeds = corpus.side_files(pattern)
        return mutate.blindly(rng, rng.choice(seeds), seeds)

    return make


def _dumped(folder: Path, name: str, data: bytes) -> None:
    """`lapse dump` of a file shows it, and reports what it cannot read."""
    path = folder / name
    path.write_bytes(data)
    problems: list[CorruptData] = []
    line = dump_side_file(path, name, problems.append)
    assert line["size"] == len(data)
    msgspec.json.encode(line)
    assert all(name in problem.where for problem in problems)


# --- indexes --------------------------------------------------------------------------------------


def check_indexes(files: Files, rng: random.Random, folder: Path) -> None:
    """What passes the check finds what an exhaustive search finds."""
    base = rng.choice((0, 0, 160, 1 << 33))
    for suffix in (".index", ".timeindex"):
        segment_path(folder, base, suffix).write_bytes(files[suffix])
    loaded = told(lambda: load_indexes(folder, base), str(folder))
    whole = all(len(files[s]) % n == 0 for s, n in ((".index", 8), (".timeindex", 12)))
    assert (loaded is not None) == whole
    if loaded is not None:
        _search(loaded, base, files, rng)
    for suffix in (".index", ".timeindex"):
        _dumped(folder, f"{base:020d}{suffix}", files[suffix])


def _search(
    loaded: tuple[OffsetIndex, TimeIndex], base: int, files: Files, rng: random.Random
) -> None:
    offset_index, time_index = loaded
    size, end = rng.choice((1, 5000, 1 << 31)), base + rng.choice((1, 400, 1 << 31))
    sound = offset_index.check(size, end) is None
    entries = list(struct.iter_unpack(">ii", files[".index"]))
    for relative in _OFFSETS:
        position = offset_index.entry_before(base + relative)[1]
        if sound:
            assert position == max((p for o, p in entries if o <= relative), default=0)
            assert 0 <= position < size
    times = list(struct.iter_unpack(">qi", files[".timeindex"]))
    sound = time_index.check(end) is None
    for time in _TIMES:
        offset = time_index.offset_before(time)
        if sound:
            assert offset == base + max((o for t, o in times if t <= time), default=0)
            assert base <= offset < end


def make_indexes(rng: random.Random) -> Files:
    files = {s: rng.choice(corpus.side_files(f"*{s}")) for s in (".index", ".timeindex")}
    for suffix in rng.choice(((".index",), (".timeindex",), tuple(files))):
        files[suffix] = mutate.blindly(rng, files[suffix], corpus.side_files(f"*{suffix}"))
    return files


def check_txn_index(data: bytes, rng: random.Random, folder: Path) -> None:
    path = segment_path(folder, 0, ".txnindex")
    path.write_bytes(data)
    entries = told(lambda: parse_entries(data, str(path)), str(path), len(data))
    if entries is not None:
        assert encode_entries(entries) == data
    index = TxnIndex(path, 0)
    start, upper = rng.choice(_OFFSETS), rng.choice(_OFFSETS)
    found = told(lambda: index.overlapping(start, upper), str(path), len(data))
    assert (found is None) == (entries is None)
    if found is not None and entries is not None:
        index.check(rng.choice(_OFFSETS))
        index.growing().write_out(FS)
        if found[1] is False:
            reaching = [e for e in entries if e.last_offset >= start and e.first_offset < upper]
            assert found[0] == reaching
    _dumped(folder, f"{0:020d}.txnindex", data)


def make_snapshot(rng: random.Random) -> bytes:
    data = _mutated("*.snapshot")(rng)
    if rng.random() < 0.7 and len(data) >= 6:
        crc = int(crc32c(np.frombuffer(data, np.uint8), 6, len(data)))
        data = data[:2] + crc.to_bytes(4, "big") + data[6:]
    return data


def check_snapshot(data: bytes, _: random.Random, folder: Path) -> None:
    producers = told(lambda: Producers.from_snapshot(data, "some.snapshot"), "some.snapshot")
    if producers is not None:
        again = Producers.from_snapshot(producers.snapshot(), "again")
        assert again.last_batches() == producers.last_batches()
        assert again.first_unstable_offset == producers.first_unstable_offset
        producers.expire(corpus.NOW, 1000)
    _dumped(folder, f"{7:020d}.snapshot", data)


# --- text files -----------------------------------------------------------------------------------

_TEXTS = {
    checkpoints.RECOVERY_POINT: "*-offset-checkpoint",
    checkpoints.LOG_START: "*-offset-checkpoint",
    checkpoints.CLEANER: "*-offset-checkpoint",
    checkpoints.HIGH_WATERMARK: "*-offset-checkpoint",
    checkpoints.LEADER_EPOCHS: "leader-epoch-checkpoint",
    checkpoints.META_PROPERTIES: "meta.properties",
    checkpoints.PARTITION_METADATA: "partition.metadata",
    checkpoints.CLEAN_SHUTDOWN: ".kafka_cleanshutdown",
}
_NUMBERS = (b"-1", b"99999999999999999999999", b"0x10", b"1_0", "٣".encode(), b"", b" ", b"1e3")


def make_text(rng: random.Random) -> Files:
    """One of them, its bytes changed or a number of it."""
    name = rng.choice(list(_TEXTS))
    data = rng.choice(corpus.side_files(_TEXTS[name]))
    if rng.random() < 0.4:
        words = data.split(b" ")
        words[rng.randrange(len(words))] = rng.choice(_NUMBERS)
        return {name: b" ".join(words)}
    return {name: mutate.blindly(rng, data, corpus.side_files(_TEXTS[name]))}


def check_text(files: Files, rng: random.Random, folder: Path) -> None:
    [(name, data)] = files.items()
    path = folder / name
    path.write_bytes(data)
    if name.endswith("-offset-checkpoint"):
        read = told(lambda: checkpoints.read_offsets(path), str(path))
        if read is not None:
            checkpoints.write_offsets(FS, path, read)
            assert checkpoints.read_offsets(path) == read
    elif name == checkpoints.LEADER_EPOCHS:
        told(lambda: checkpoints.read_epochs(path), str(path))
        epochs = LeaderEpochs(FS, folder)
        epochs.cut(0, rng.choice(_OFFSETS))
        epochs.truncate_start(rng.choice(_OFFSETS))
        epochs.assign(min(epochs.latest + 1, (1 << 31) - 1), 50)
        epochs.save()
        assert epochs.entries == LeaderEpochs(FS, folder).entries
        ascending = [a < b for a, b in zip(epochs.entries, epochs.entries[1:], strict=False)]
        assert all(ascending)
    elif name == checkpoints.META_PROPERTIES:
        told(lambda: checkpoints.read_meta(folder), str(path))
    elif name == checkpoints.PARTITION_METADATA:
        told(lambda: checkpoints.read_topic_id(folder), str(path))
    else:
        told(lambda: checkpoints.read_clean_shutdown(folder), str(path))
    _dumped(folder, name, data)


# --- ours -----------------------------------------------------------------------------------------


def check_summary(data: bytes, _: random.Random, folder: Path) -> None:
    path = summary_path(folder, 0)
    path.parent.mkdir()
    path.write_bytes(data)
    summary = read_summary(path)
    read_clock(path)
    keys = read_keys(path, 0 if summary is None else summary.size)
    sketch = None if keys is None else decode_sketch(keys)
    assert sketch is None or estimate([sketch]) >= 0
    _dumped(folder, path.relative_to(folder).as_posix(), data)


def check_append_times(data: bytes, random_: random.Random, folder: Path) -> None:
    path = append_times_path(folder, 0)
    path.parent.mkdir()
    path.write_bytes(data)
    known = read_append_times(folder, 0, random_.choice([0, 1000]))
    ascending = (known.offsets[1:] > known.offsets[:-1]).all()
    assert ascending
    assert all(known.shown(known.offsets) >= -1)
    for cutoff in (0, corpus.NOW, (1 << 63) - 1):
        first = known.first_not_before(cutoff, 0)
        assert first is None or first >= 0
    if is_append_times(data):
        assert parse(encode(known, 0), 0).offsets.tolist() == known.offsets.tolist()
    _dumped(folder, path.relative_to(folder).as_posix(), data)


@cache
def _ledger() -> bytes:
    entry = ledger.LedgerEntry(
        "round", 0, corpus.NOW, corpus.NOW + 5, corpus.NOW + 1, 2, 1000, 500,
        (ledger.Removed(0, "superseded", ledger.BitMap([1, 2, 70_000]).serialize()),),
    )  # fmt: skip
    payload = msgspec.msgpack.encode(entry)
    return _framed(payload) * 2


def _framed(payload: bytes) -> bytes:
    crc = int(crc32c(np.frombuffer(payload, np.uint8), 0, len(payload)))
    return struct.pack(">II", len(payload), crc) + payload


def make_ledger(rng: random.Random) -> bytes:
    """Two entries, changed; mostly their checksum is right all the same."""
    if rng.random() < 0.3:
        return mutate.blindly(rng, _ledger())
    one = _ledger()[: len(_ledger()) // 2]
    return one + _framed(mutate.blindly(rng, one[8:])) + one


def check_ledger(data: bytes, _: random.Random, folder: Path) -> None:
    path = ledger.ledger_path(folder)
    path.parent.mkdir()
    path.write_bytes(data)
    where = str(path)
    told(lambda: list(ledger.read(folder)), where, len(data))
    told(lambda: list(ledger.read_heads(folder)), where, len(data))
    told(lambda: StampCache().of(folder, -1, corpus.NOW), where, len(data))
    told(lambda: list(ledger.departures(folder, 1)), where, len(data))
    more = msgspec.msgpack.decode(_ledger()[8 : len(_ledger()) // 2], type=ledger.LedgerEntry)
    told(lambda: ledger.append(FS, folder, more), where, len(data))


def make_intent(rng: random.Random) -> bytes:
    group = {
        "base_offset": 0, "old_bases": [0, 40], "mtime_ns": 5, "stamped": 1,
        "files": [{"kind": k, "size": 9, "crc": 7} for k in ("records", "offsets", "times")],
        "summary": {"base_offset": 0, "size": 9, "end_offset": 50}, "removed": {"superseded": 3},
        "removed_offsets": rng.choice(("", "kZMAonN1xAA=")),
    }  # fmt: skip
    receipt = {
        "round_id": "r", "attempt_id": "a", "name": "fuzz-0", "generation": 1, "pid": 1,
        "now_ms": 2, "horizon_ms": 3, "end_offset": 50, "groups": [group], "map_entries": 1,
        "records_read": 4, "records_written": 1, "bytes_read": 9, "bytes_written": 9,
        "seconds": {"map": 0.5},
    }  # fmt: skip
    data = msgspec.json.encode(receipt)
    msgspec.json.decode(data, type=Receipt)
    return mutate.blindly(rng, data)


def check_intent(data: bytes, _: random.Random, folder: Path) -> None:
    """A commit's receipt, found after a crash."""
    path = intent_path(folder)
    path.parent.mkdir()
    path.write_bytes(data)
    moved: list[int] = []
    told(lambda: finish_commit(folder, CommitEnv(FS, ManualClock(), moved.append)), str(folder))
    assert not moved, "nothing of it is in place"


# --- coordinators ---------------------------------------------------------------------------------


@cache
def _entries() -> list[tuple[bytes, bytes]]:
    """Keys and values out of real internal topics, and of types that are not in them."""
    found: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}
    for topic in ("__consumer_offsets-*", "__transaction_state-*"):
        for path in sorted(corpus.goldens().glob(f"golden-clean-shutdown/{topic}/*.log")):
            data = path.read_bytes()
            for row in scan_batches(data, str(path)):
                for r in records_of(data, row, str(path)):
                    if r.key and r.value and not int(row["attributes"]) & 0x20:
                        found.setdefault((r.key[:2] + r.value[:2], len(r.value) // 64),
                                         (r.key, r.value))  # fmt: skip
    commit = offsets.OffsetCommitValue(
        offset=5, metadata="m", commit_timestamp=1, expire_timestamp=2
    )
    key = offsets.OffsetCommitKey(group="g", topic="t", partition=1)
    for version in range(5):
        key_bytes, value = encode_entry(offsets.OFFSET_COMMIT, key, commit, version)
        assert value is not None
        found[key_bytes[:2] + value[:2], 99] = key_bytes, value
    return list(found.values())


def make_entry(rng: random.Random) -> Files:
    key, value = rng.choice(_entries())
    if rng.random() < 0.4:
        key = mutate.blindly(rng, key)
    if rng.random() < 0.8:
        value = mutate.blindly(rng, value, [v for _, v in _entries()])
    return {"key": key, "value": value}


def check_entry(files: Files, _: random.Random, __: Path) -> None:
    for types in (offsets.TYPES, transactions.TYPES):
        entry = refused(lambda types=types: decode_entry(types, files["key"], files["value"]))
        if isinstance(entry, Entry) and entry.type.value is not None:
            again = encode_entry(entry.type, entry.key, entry.value, entry.version)
            assert again[1] is not None
            assert len(again[1]) <= len(files["value"]) + 8
        refused(lambda types=types: decode_entry(types, files["key"], None))


@cache
def _subscriptions() -> list[bytes]:
    owned = (TopicPartitions(topic="t", partitions=(1, 2)),)
    return [
        write_versioned(
            ConsumerProtocolSubscription(
                topics=("t", "u"), user_data=b"x", owned_partitions=owned, rack_id="r"
            )
        ),
        write_versioned(ConsumerProtocolAssignment(assigned_partitions=owned)),
    ]


def make_subscription(rng: random.Random) -> bytes:
    return mutate.blindly(rng, rng.choice(_subscriptions()), _subscriptions())


def check_subscription(data: bytes, _: random.Random, __: Path) -> None:
    for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
        refused(lambda cls=cls: read_versioned(cls, data))


TARGETS: tuple[Target, ...] = (
    Target("indexes", 60, make_indexes, check_indexes),
    one_file("txnindex", 30, _mutated("*.txnindex"), check_txn_index),
    one_file("snapshot", 40, make_snapshot, check_snapshot),
    Target("texts", 50, make_text, check_text),
    one_file("summary", 20, _mutated("*.summary"), check_summary),
    one_file("append times", 10, _mutated("*.appended"), check_append_times),
    one_file("ledger", 30, make_ledger, check_ledger),
    one_file("intent", 20, make_intent, check_intent),
    Target("coordinators", 50, make_entry, check_entry),
    one_file("subscriptions", 10, make_subscription, check_subscription),
)
