"""What Lapse wrote is at home in Kafka.

Logs of every shape (`written_log`) are given to real Kafka's own classes: to be read, opened as
they are, recovered from nothing but the `.log` files, compacted, and looked through by its
DumpLogSegments. What Kafka makes anew must be what we wrote, byte for byte; what it reads must be
what was sent. `test_to_kafka.py` goes on with `lapse convert` and with a running broker.
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.layout import Codec
from lapse.testing.clock import ManualClock
from tests.oracle.oracle import Line, Oracle
from tests.oracle.written_log import (
    Batch,
    Sent,
    Shape,
    Written,
    newest,
    open_directory,
    write_log,
)
from tests.reference import batches as twin_batches
from tests.reference import cleaning

TP = TopicPartition("t", 0)
STEPS = 120
OLD = ("0.9", "0.10", "2.0")
SHAPES = {
    "compact": Shape(),
    "compact, LogAppendTime": Shape(timestamp_type="LogAppendTime"),
    "compact, no transactions": Shape(transactions=False),
    "compact, upgraded": Shape(formats=OLD),
    "compact, upgraded, LogAppendTime": Shape(formats=OLD, timestamp_type="LogAppendTime"),
    "compact, v0": Shape(formats=("0.9",), producers=False, transactions=False),
    "compact, v1": Shape(formats=("0.10",), producers=False, transactions=False),
    "compact and delete": Shape(policy="compact,delete"),
    "compact and delete, upgraded": Shape(policy="compact,delete", formats=OLD),
    "delete": Shape(policy="delete"),
    "delete, upgraded, LogAppendTime": Shape(
        policy="delete", formats=OLD, timestamp_type="LogAppendTime"
    ),
}
COMPACT = [name for name, shape in SHAPES.items() if shape.compacts]
SIDE_FILES = {".index", ".timeindex", ".txnindex", ".snapshot"}
NO_EPOCHS = b""
RETENTION_MS = 86_400_000
FILES_MAX = 500  # in one command line


@pytest.fixture(scope="module")
def written_as(
    tmp_path_factory: pytest.TempPathFactory, scaled: Callable[[int], int]
) -> Callable[[str], list[Written]]:
    """Closed logs of a shape; copy before giving them away."""
    path = tmp_path_factory.mktemp("written")

    @functools.cache
    def written_as(name: str) -> list[Written]:
        number = list(SHAPES).index(name)
        return [
            closed(path / f"{1000 * number + n}", SHAPES[name], 1000 * number + n)
            for n in range(scaled(20))
        ]

    return written_as


def closed(path: Path, shape: Shape, seed: int) -> Written:
    directory = open_directory(path)
    written = write_log(directory, TP, shape, seed, STEPS)
    assert directory.logs[TP].last_stable_offset == written.last_stable_offset
    directory.close()
    return written


@pytest.fixture(params=SHAPES)
def logs(
    request: pytest.FixtureRequest, written_as: Callable[[str], list[Written]]
) -> list[Written]:
    return written_as(request.param)


def files_of(partition: Path) -> dict[str, bytes]:
    """Kafka's files, not `.lapse`; the list of leader epochs that Kafka begins, empty as it is."""
    found = {p.name: p.read_bytes() for p in partition.iterdir() if p.is_file()}
    found.setdefault("leader-epoch-checkpoint", NO_EPOCHS)
    return found


def copied(written: Written, to: Path) -> Path:
    """Only what Kafka knows."""
    shutil.copytree(written.dir, to / str(TP), ignore=shutil.ignore_patterns(".lapse"))
    return to / str(TP)


def options_of(written: Written) -> dict[str, Any]:
    """What the oracle is to be told of the topic."""
    shape = written.shape
    return {
        "now": written.now_ms + 1000,
        "segment_bytes": shape.internal_segment_bytes,
        "index_interval_bytes": 300,
        "cleanup_policy": shape.policy,
        "timestamp_type": "append" if shape.timestamp_type == "LogAppendTime" else "create",
        "log_start_offset": written.start,
        "write_checkpoint": False,
    }


def only_opened(oracle: Oracle, partition: Path, written: Written, **more: Any) -> Line:
    """What Kafka says of a log that it opens and closes: nothing is due."""
    never = {"respect_eligibility": True, "min_cleanable_dirty_ratio": 1}
    said = oracle.clean(partition, **options_of(written), **never, **more)
    assert not said["cleaned"]
    return said


def different(ours: dict[str, bytes], theirs: dict[str, bytes]) -> list[str]:
    """Names of files that are on one side only, or not the same."""
    return sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))


# --- read ----------------------------------------------------------------------------------------


def as_read(lines: list[Line]) -> list[Sent]:
    """Data records of a dump; whose they are is the batches' matter."""
    return [
        Sent(
            line["offset"], line["timestamp"], unhex(line["key"]), unhex(line["value"]),
            tuple((name, unhex(value)) for name, value in line.get("headers", ())),
        )
        for line in lines
        if line["type"] == "record" and "control_type" not in line
    ]  # fmt: skip


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def bare(records: list[Sent]) -> list[Sent]:
    """Without the transactions, which no record says."""
    return [Sent(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


def test_kafka_reads_what_was_sent(oracle: Oracle, logs: list[Written]) -> None:
    for written in logs:
        lines = oracle.dump(written.dir, values="hex", side=False)
        assert as_read(lines) == bare(written.records)
        markers = {
            line["offset"]: (line["control_type"], line["coord_epoch"])
            for line in lines
            if "control_type" in line
        }
        assert markers == written.markers
        assert [header_of(line) for line in lines if line["type"] == "batch"] == written.batches
        assert all(line.get("crc_ok", True) for line in lines)
        assert all(int(b["file"][:20]) <= b["base_offset"] for b in lines if b["type"] == "batch")


def header_of(line: Line) -> Batch:
    return Batch(
        line["base_offset"], line["last_offset"], line["magic"], Codec[line["codec"].upper()],
        line["timestamp_type"] == "LogAppendTime",
        line["count"] if line["magic"] == 2 else line["last_offset"] - line["base_offset"] + 1,
        (line["pid"], line["epoch"], line["base_seq"]),
        line.get("leader_epoch", -1), line["txn"], line["control"],
    )  # fmt: skip


# --- opened --------------------------------------------------------------------------------------


def test_kafka_opens_it_as_it_is(oracle: Oracle, logs: list[Written], tmp_path: Path) -> None:
    """After a clean shutdown it trusts what is there, and leaves every file as it was.

    Save for snapshots that are not above the log start: those it throws away, of its own too.
    """
    for n, written in enumerate(logs):
        partition = copied(written, tmp_path / str(n))
        said = only_opened(oracle, partition, written, clean_shutdown=True)
        assert said["log_start_offset"] == written.start
        assert said["log_end_offset"] == written.end
        assert said["last_stable_offset"] == written.last_stable_offset
        assert said["segments_before"] == len(list(written.dir.glob("*.log")))
        gone = [f"{base:020d}.snapshot" for base in bases_of(written) if base <= written.start]
        ours = {name: data for name, data in files_of(written.dir).items() if name not in gone}
        assert different(ours, files_of(partition)) == []


def bases_of(written: Written) -> list[int]:
    return sorted(int(p.stem) for p in written.dir.glob("*.log"))


def test_kafka_recovers_what_we_wrote(oracle: Oracle, logs: list[Written], tmp_path: Path) -> None:
    """After a crash it makes all side files anew, and they are ours.

    Where the log's beginning is gone, Kafka has forgotten what producers did there, since it
    throws the snapshot at the first segment away: who they are is then not compared.
    """
    for n, written in enumerate(logs):
        partition = copied(written, tmp_path / str(n))
        said = only_opened(oracle, partition, written, clean_shutdown=False, recovery_point=0)
        assert said["log_end_offset"] == written.end
        assert said["last_stable_offset"] == written.last_stable_offset
        differing = different(files_of(written.dir), files_of(partition))
        if written.start > 0:
            differing = [n for n in differing if not n.endswith((".snapshot", ".txnindex"))]
        assert differing == []


def test_from_the_logs_alone_kafka_makes_the_same_as_lapse(
    oracle: Oracle, logs: list[Written], tmp_path: Path
) -> None:
    """Two recoveries of nothing but `.log` files: one by real Kafka, one by us."""
    for n, written in enumerate(logs):
        theirs, ours = (copied(written, tmp_path / str(n) / who) for who in ("kafka", "lapse"))
        for file in (f for p in (theirs, ours) for f in p.iterdir()):
            if file.suffix in SIDE_FILES or file.name == "leader-epoch-checkpoint":
                file.unlink()
        said = only_opened(oracle, theirs, written, clean_shutdown=False, recovery_point=0)
        log = reopened(ours, written, clean_shutdown=False)
        assert log.log_end_offset == said["log_end_offset"] == written.end
        assert log.last_stable_offset == said["last_stable_offset"] == written.last_stable_offset
        log.close()
        assert different(files_of(ours), files_of(theirs)) == []
        if written.start == 0:
            assert different(files_of(ours), files_of(written.dir)) == []


def reopened(partition: Path, written: Written, *, clean_shutdown: bool) -> PartitionLog:
    env = LogEnv(RealFs(), ManualClock(written.now_ms + 1000))
    return PartitionLog.open(
        partition, TP, written.shape.config("2.0"), env, clean_shutdown=clean_shutdown,
        log_start_offset=written.start,
    )  # fmt: skip


# --- compacted -----------------------------------------------------------------------------------


def survivors(written: Written, bound: int, *, tombstones_too: bool) -> list[Sent]:
    """What a compaction up to `bound` leaves (M-3, R-2 to R-6).

    Aborted data goes, unless the marker itself is below the log start (X-1): Kafka no longer knows.
    """
    aborted = {
        n for n, txn in enumerate(written.txns)
        if txn.is_aborted and (txn.marker_offset or 0) >= written.start
    }  # fmt: skip
    decided = [r for r in written.records if r.offset < bound and r.txn not in aborted]
    last = newest(r for r in decided if r.offset >= written.start)
    kept = [
        r for r in decided
        if r.key is not None and r.offset >= last.get(r.key, -1)
        and (tombstones_too or r.value is not None)
    ]  # fmt: skip
    return kept + [r for r in written.records if r.offset >= bound]


@pytest.mark.parametrize("logs", COMPACT, indirect=True)
def test_kafka_compacts_it(oracle: Oracle, logs: list[Written], tmp_path: Path) -> None:
    """One round leaves each key's last committed record, another one takes the tombstones."""
    for n, written in enumerate(logs):
        partition = copied(written, tmp_path / str(n))
        options = {**options_of(written), "delete_retention_ms": RETENTION_MS, "force": True}
        for first in (True, False):
            said = oracle.clean(partition, **options, producer_expiration_ms=1 << 30)
            assert said["cleaned"]
            assert said["invalid_messages_read"] == 0
            bound = said["first_uncleanable"]
            assert said["first_dirty_after"] == bound > 100
            left = as_read(oracle.dump(partition, values="hex", side=False))
            assert left == bare(survivors(written, bound, tombstones_too=first))
            log = reopened(partition, written, clean_shutdown=False)  # and back
            assert log.log_end_offset == written.end
            assert log.last_stable_offset == written.last_stable_offset
            log.close()
            options["now"] += RETENTION_MS


@pytest.mark.parametrize("logs", ["compact, no transactions"], indirect=True)
def test_kafkas_cleaner_writes_the_batches_that_the_rules_say(
    oracle: Oracle, logs: list[Written], tmp_path: Path
) -> None:
    """Headers too, against the slow twin of the rules: of plain and idempotent batches of v2."""
    for n, written in enumerate(logs):
        partition = copied(written, tmp_path / str(n))
        options = {**options_of(written), "delete_retention_ms": RETENTION_MS}
        *_, last = (x for x in oracle.dump(partition) if x.get("name", "").endswith("snapshot"))
        said = oracle.clean(partition, **options)
        upper, now = said["first_uncleanable"], options["now"]
        segments = tuple((base, log_of(written, base)) for base in bases_of(written))
        told = cleaning.Round(
            kafka=True, dirty=0, upper=upper,
            segments=tuple((base, data) for base, data in segments if base < upper),
            guarded_last_offsets=frozenset(e["last_data_offset"] for e in last["entries"]),
            end_guard=upper, horizon_ms=now + RETENTION_MS, passed_until_ms=now,
            map_entries_max=1 << 20,
        )  # fmt: skip
        expected = [after for base in cleaning.clean(told).segments.values() for after in base]
        data = b"".join(p.read_bytes() for p in sorted(partition.glob("*.log")))
        found = [b for b in cleaning.parse(data) if b.base_offset < upper]
        assert [fields_of(batch) for batch in found] == [after.header for after in expected]
        for batch, after in zip(found, expected, strict=True):
            assert after.raw in (None, batch.raw)
            assert not (batch.count and [
                (r.offset, r.key, r.value, r.timestamp, r.headers) for r in after.records
            ] != [
                (r.offset, r.key, r.value, r.timestamp, r.headers)
                for r in (cleaning.view(batch, record) for record in cleaning.records_of(batch))
            ])  # fmt: skip


def log_of(written: Written, base: int) -> bytes:
    return (written.dir / f"{base:020d}.log").read_bytes()


def fields_of(batch: twin_batches.Batch) -> dict[str, int]:
    fields = {name: getattr(batch, name) for name in twin_batches.FIELDS}
    del fields["length"], fields["crc"]
    return fields


# --- dumped --------------------------------------------------------------------------------------


def test_dump_log_segments_has_nothing_to_complain_of(
    kafka_tools: Callable[..., subprocess.CompletedProcess[str]],
    written_as: Callable[[str], list[Written]],
) -> None:
    """Logs, indexes, transaction indexes and snapshots of all shapes at once."""
    every = [written for name in SHAPES for written in written_as(name)]
    asked = ["--deep-iteration", "--print-data-log"]
    said, complaints = dumped(kafka_tools, asked, every, {".log", *SIDE_FILES})
    assert complaints == [line for written in every for line in gaps_in(written)]
    batches = sum(len(written.batches) for written in every)
    assert len(re.findall(r"\bisvalid: true", said)) == batches
    assert len(re.findall(r"^\| offset: ", said, re.MULTILINE)) == sum(
        len(written.records) + len(written.markers) for written in every
    )
    for flag in ("--verify-index-only", "--index-sanity-check"):
        said, complaints = dumped(kafka_tools, [flag], every, {".index", ".timeindex"})
        assert complaints == []
        if flag == "--index-sanity-check":
            bases = sum(len(bases_of(written)) for written in every)
            found = re.findall(r"index (?:passed sanity check|is empty)", said)
            assert len(found) == 2 * bases


def dumped(
    kafka_tools: Callable[..., subprocess.CompletedProcess[str]],
    asked: list[str],
    logs: list[Written],
    kinds: set[str],
) -> tuple[str, list[str]]:
    """What it printed, and the complaints, file after file."""
    files = [p for w in logs for p in sorted(w.dir.iterdir()) if p.suffix in kinds]
    said, complaints = "", []
    for n in range(0, len(files), FILES_MAX):
        some = files[n : n + FILES_MAX]
        done = kafka_tools("DumpLogSegments", [*asked, "--files", ",".join(map(str, some))])
        assert done.returncode == 0, done.stderr
        found = re.split(r"^(?=\S)", done.stderr, flags=re.MULTILINE)
        order = {f"Non-consecutive offsets in {file}": n for n, file in enumerate(some)}
        complaints += sorted(found, key=lambda text: order.get(text.partition("\n")[0], -1))
        said += done.stdout
    assert not re.search(r"isvalid: false|mismatch|out of order|corrupt", said, re.IGNORECASE)
    lines = "".join(complaints).splitlines()
    return said, [line for line in lines if not re.search("SLF4J|log4j", line)]


def gaps_in(written: Written) -> list[str]:
    """It finds fault with gaps between offsets, and with a file that does not begin at 0."""
    lines = []
    bases = bases_of(written)
    offsets = sorted([r.offset for r in written.records] + list(written.markers))
    for base, following in zip(bases, [*bases[1:], written.end], strict=True):
        inside = [-1, *(o for o in offsets if base <= o < following)]
        gaps = [(a, b) for a, b in itertools.pairwise(inside) if b != a + 1]
        if gaps:
            lines.append(f"Non-consecutive offsets in {written.dir / f'{base:020d}.log'}")
            lines += [f"  {a} is followed by {b}" for a, b in gaps]
    return lines
