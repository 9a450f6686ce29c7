"""What the format forbids: refused when appended, reported when read. One row a fault."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.commit import CommitEnv, finish_commit, intent_path
from lapse.log.checkpoints import read_epochs
from lapse.log.epochs import LeaderEpochs
from lapse.log.reader import read_facts
from lapse.records.batch import records_of, scan_batches, scan_prefix
from lapse.records.builder import BatchSpec, NewRecord, build_batch, varint
from lapse.records.compression import deflate
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.records.validate import RefusedBatch, check_produced
from lapse.testing.clock import ManualClock
from tests.fuzz import corpus, mutate

NOW = corpus.NOW
TOPIC = corpus.config(cleanup_policy="delete")
STRETCHED = b"\x80\x80\x80\x80\x80\x00"  # nought in six bytes; five are allowed
STRETCHED_LONG = b"\x80" * 10 + b"\x00"  # eleven; ten are allowed


@dataclass(frozen=True)
class Fault:
    """One thing wrong.

    Attributes:
        record: the record's bytes after its length.
        batch: what else is said: header fields by name (`mutate.FIELDS`).
    """

    record: bytes | None = None
    length: bytes | None = None
    more: bytes = b""
    field: tuple[str, int] | None = None


def record(
    *,
    attributes: bytes = b"\0",
    timestamp_delta: bytes = b"\0",
    offset_delta: bytes = b"\0",
    key_length: bytes = varint(1),
    key: bytes = b"k",
    value_length: bytes = varint(1),
    value: bytes = b"v",
    headers: bytes = b"\0",
) -> bytes:
    """A record, each part of it to be replaced."""
    return (
        attributes + timestamp_delta + offset_delta + key_length + key + value_length + value
        + headers
    )  # fmt: skip


FAULTS = {
    "length stretched": Fault(length=b"\x90\x80\x80\x80\x80\x00"),
    "length negative": Fault(length=varint(-1)),
    "length nought": Fault(length=varint(0)),
    "length beyond the batch": Fault(length=varint(100)),
    "length of 2^31 - 1": Fault(length=varint((1 << 31) - 1)),
    "length of -2^31": Fault(length=varint(-(1 << 31))),
    "length cut off": Fault(record=b"", length=b"\x80"),
    "time delta stretched": Fault(record(timestamp_delta=STRETCHED_LONG)),
    "offset delta stretched": Fault(record(offset_delta=STRETCHED)),
    "key length stretched": Fault(record(key_length=STRETCHED, key=b"")),
    "key length below -1": Fault(record(key_length=varint(-2), key=b"")),
    "key length beyond the record": Fault(record(key_length=varint(200))),
    "key length of 2^31 - 1": Fault(record(key_length=varint((1 << 31) - 1))),
    "value length stretched": Fault(record(value_length=STRETCHED, value=b"")),
    "value length below -1": Fault(record(value_length=varint(-2), value=b"")),
    "value length beyond the record": Fault(record(value_length=varint(3))),
    "value to the very end, no headers": Fault(record(headers=b"")),
    "value length of 2^31 - 1": Fault(record(value_length=varint((1 << 31) - 1))),
    "header count negative": Fault(record(headers=varint(-1))),
    "header count stretched": Fault(record(headers=STRETCHED)),
    "header count too large": Fault(record(headers=varint(2) + b"\x02h\x01")),
    "header count of 2^31 - 1": Fault(record(headers=varint((1 << 31) - 1))),
    "header count too small": Fault(record(headers=varint(0) + b"\x02h\x01")),
    "header name null": Fault(record(headers=varint(1) + varint(-1) + varint(-1))),
    "header name beyond": Fault(record(headers=varint(1) + varint(50) + b"h")),
    "header value below -1": Fault(record(headers=varint(1) + b"\x02h" + varint(-2))),
    "header value stretched": Fault(record(headers=varint(1) + b"\x02h" + STRETCHED)),
    "bytes after the last record": Fault(more=b"\0"),
    "count too large": Fault(field=("count", 2)),
    "count far too large": Fault(field=("count", (1 << 31) - 1)),
    "count too small": Fault(field=("count", 0)),
    "count negative": Fault(field=("count", -1)),
    "count of -2^31": Fault(field=("count", -(1 << 31))),
    "last offset delta negative": Fault(field=("last_delta", -1)),
    "length of the batch too small": Fault(field=("length", 48)),
    "length of the batch negative": Fault(field=("length", -1)),
    "length of the batch too large": Fault(field=("length", 1 << 20)),
    "format 3": Fault(field=("magic", 3)),
    "format -1": Fault(field=("magic", -1)),
}
# What only a producer may not do: a broker's own rewrites leave gaps.
GAPS = {
    "offset delta not 0": Fault(record(offset_delta=varint(1))),
    "offset delta negative": Fault(record(offset_delta=varint(-1))),
    "last offset delta beyond the records": Fault(field=("last_delta", 5)),
    "last offset delta of 2^31 - 1": Fault(field=("last_delta", (1 << 31) - 1)),
}


def made(fault: Fault, codec: Codec, base_offset: int = 0) -> bytes:
    """A batch of one record that has the fault, its checksum right."""
    body = record() if fault.record is None else fault.record
    length = varint(len(body)) if fault.length is None else fault.length
    plain = length + body + fault.more
    batch = bytearray(
        build_batch([NewRecord(b"k", b"v", NOW)], BatchSpec(base_offset, codec))[:61]
        + bytes(deflate(codec, np.frombuffer(plain, np.uint8)))
    )
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    if fault.field is not None:
        at, kind = mutate.FIELDS[fault.field[0]]
        struct.pack_into(f">{kind}", batch, at, fault.field[1])
    return mutate.checked(bytes(batch))


def test_without_a_fault_it_is_taken_and_read() -> None:
    for codec in Codec:
        data = made(Fault(), codec)
        assert check_produced(data, TOPIC, NOW, "fuzz-0").header.count == 1
        [row] = scan_batches(data, "fuzz-0")
        assert [r.key for r in records_of(data, row, "fuzz-0")] == [b"k"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("name", [*FAULTS, *GAPS])
def test_a_producer_is_refused(name: str, codec: Codec) -> None:
    data = made({**FAULTS, **GAPS}[name], codec)
    with pytest.raises(RefusedBatch, match="fuzz-0: "):
        check_produced(data, TOPIC, NOW, "fuzz-0")


def read(data: bytes) -> None:
    """Everything there is."""
    for row in scan_batches(data, "fuzz-0"):
        list(records_of(data, row, "fuzz-0"))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("name", FAULTS)
def test_a_reader_is_told(name: str, codec: Codec) -> None:
    """By the scan or by whoever asks for the records, with the position of the batch."""
    before = build_batch([NewRecord(b"k", b"v", NOW)])
    data = before + made(FAULTS[name], codec, base_offset=1)
    with pytest.raises(CorruptData, match=f"fuzz-0: .* at byte {len(before)}$") as told:
        read(data)
    assert told.value.position == len(before)


# --- batches among each other ---------------------------------------------------------------------


def batch(base_offset: int, records: int = 2) -> bytes:
    new = [NewRecord(b"k%d" % n, b"v", NOW) for n in range(records)]
    return build_batch(new, BatchSpec(base_offset))


ORDERS = {
    "the same twice": (batch(0), batch(0)),
    "back": (batch(4), batch(0)),
    "overlapping by one": (batch(0, 3), batch(2)),
    "within the one before": (batch(0, 9), batch(3)),
    "below nought": (batch(0), batch(-5)),
    "as low as can be": (batch(0), batch(-(1 << 63))),
    "past the last offset there is": (batch(0), batch((1 << 63) - 2)),
    "messages that go back": tuple(
        build_messages([Message(n, NOW, b"k", b"v")], MessageSpec(1)) for n in (3, 3)
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_follower_refuses_offsets_that_do_not_ascend(name: str, tmp_path: Path) -> None:
    """Together, and the second after the first is in the log."""
    first, second = ORDERS[name]
    log = corpus.open_log(tmp_path, clean_shutdown=False)
    with pytest.raises(CorruptData, match=f"fuzz-0: .* at byte {len(first)}$"):
        log.append_raw(first + second)
    assert log.log_end_offset == 0
    log.append_raw(first)
    end = log.log_end_offset
    with pytest.raises(CorruptData, match=r"fuzz-0: .* at byte 0$"):
        log.append_raw(second)
    assert log.log_end_offset == end
    log.close()


@pytest.mark.parametrize("name", ORDERS)
def test_offsets_that_do_not_ascend_are_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To who looks, in the summary; by recovery, which cuts there; the first one stays."""
    first, second = ORDERS[name]
    home = tmp_path / "fuzz-0"
    home.mkdir()
    path = home / f"{0:020d}.log"
    path.write_bytes(first + second)
    facts = read_facts(home, corpus.TP, clock=ManualClock(NOW))
    end = int(scan_prefix(first)[0]["last_offset"][-1]) + 1
    assert facts.log_end_offset == end
    log = corpus.open_log(home, clean_shutdown=False)
    assert (log.log_end_offset, path.read_bytes()) == (end, first)
    assert "offsets out of order; cut off" in caplog.text
    log.close()


def test_wide_gaps_are_taken(tmp_path: Path) -> None:
    """An index has 32 bits for an offset: what a compacted leader sends may need two segments."""
    log = corpus.open_log(tmp_path, clean_shutdown=False)
    far = 1 << 33
    data = batch(5) + batch(far) + batch(far + 9)
    log.append_raw(data)
    assert [s.base_offset for s in log.segments][1:] == [far]
    assert log.read(5, 1000).read() + log.read(7, 1000).read() == data
    log.close()
    log = corpus.open_log(tmp_path, clean_shutdown=False)
    assert log.read(7, 1000).read() == batch(far) + batch(far + 9)
    log.close()


# --- what the fuzzer found ------------------------------------------------------------------------


def test_a_marker_that_does_not_parse_costs_nothing_before_it(tmp_path: Path) -> None:
    """Recovery cuts at it, and not at the beginning of the block it read."""
    good = batch(0) + batch(2)
    marker = made(Fault(record=b"\0\0\0"), Codec.NONE, base_offset=4)
    attributes = mutate.FIELDS["attributes"][0]
    marker = mutate.checked(marker[:attributes] + b"\0\x30" + marker[attributes + 2 :])
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(good + marker + batch(5))
    log = corpus.open_log(tmp_path, clean_shutdown=False)
    assert (log.log_end_offset, path.read_bytes()) == (4, good)
    log.close()


def test_an_index_of_another_file_is_not_believed(tmp_path: Path) -> None:
    """After a clean shutdown nobody reads the segment; the index passes every check of its own."""
    log = corpus.open_log(tmp_path, clean_shutdown=False)
    log.update_config(corpus.config(internal_segment_bytes="100000", index_interval_bytes="0"))
    for n in range(20):
        log.append_raw(batch(2 * n))
    log.roll(NOW)
    log.close()
    path = tmp_path / f"{0:020d}.index"
    entries = list(struct.iter_unpack(">ii", path.read_bytes()))
    path.write_bytes(b"".join(struct.pack(">ii", o, p + 4) for o, p in entries))
    log = corpus.open_log(tmp_path, clean_shutdown=True, recovery_point=40)
    for n in range(20):
        assert log.read(2 * n, 1).read() == batch(2 * n)
    log.close()


def test_a_segment_that_repeats_offsets_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(batch(0, 9))
    (tmp_path / f"{4:020d}.log").write_bytes(batch(4) + batch(20))
    log = corpus.open_log(tmp_path, clean_shutdown=False)
    assert [s.base_offset for s in log.segments] == [0]
    assert log.log_end_offset == 9
    assert "removing the segment at 4" in caplog.text
    log.close()


def test_a_name_that_is_no_offset_is_nobodys_segment(tmp_path: Path) -> None:
    (tmp_path / f"{10**20 - 1}.log").write_bytes(batch(0))
    log = corpus.open_log(tmp_path, clean_shutdown=False)
    assert log.log_end_offset == 0
    log.close()


def test_dump_shows_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is shown, the fault is said with file and position, and the exit code is 1."""
    path = tmp_path / f"{0:020d}.log"
    bad = made(FAULTS["key length beyond the record"], Codec.NONE, base_offset=2)
    path.write_bytes(batch(0) + bad + batch(3))
    assert main(["dump", "--json", str(path)]) == 1
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert [line["type"] for line in lines] == ["batch", "record", "record", "batch", "batch",
                                                "record", "record"]  # fmt: skip
    assert f"{path}: record 0 does not parse at byte {len(batch(0))}" in shown.err


def test_epochs_that_go_back_are_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    for entries in ("0 0\n4 -1", "0 5\n1 5", "3 0\n3 9", "2 0\n1 9"):
        path.write_text(f"0\n2\n{entries}\n")
        with pytest.raises(CorruptData, match=f"{path}: .* does not ascend"):
            read_epochs(path)
        assert LeaderEpochs(RealFs(), tmp_path).entries == ()


def test_an_epoch_that_no_answer_can_hold_is_as_good_as_none(tmp_path: Path) -> None:
    """Else one file would keep Metadata of all topics from being told."""
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n2147483648 9\n")
    with pytest.raises(CorruptData, match=f"{path}: .* more than 32 bits"):
        read_epochs(path)
    assert LeaderEpochs(RealFs(), tmp_path).current == 0
    path.write_text("0\n2\n0 0\n2147483647 9\n")
    assert LeaderEpochs(RealFs(), tmp_path).current == 2147483647


@pytest.mark.parametrize("payload", [b"\x80", b"\xff\xff", b"\x81\xa1\xff\x00", b"\xc1"])
def test_a_ledger_of_something_else_is_told(payload: bytes, tmp_path: Path) -> None:
    """Its checksum is right: somebody wrote it."""
    path = ledger.ledger_path(tmp_path)
    path.parent.mkdir()
    crc = int(crc32c(np.frombuffer(payload, np.uint8), 0, len(payload)))
    path.write_bytes(struct.pack(">II", len(payload), crc) + payload)
    for read in (ledger.read, ledger.read_heads):
        with pytest.raises(CorruptData, match=f"{path}: .* at byte 0$"):
            list(read(tmp_path))


@pytest.mark.parametrize("data", [b"", b"{}", b'{"round_id": "\xff"}', b'{"groups": [{}]}'])
def test_an_intent_that_is_not_whole_is_of_a_commit_not_begun(data: bytes, tmp_path: Path) -> None:
    path = intent_path(tmp_path)
    path.parent.mkdir()
    path.write_bytes(data)
    env = CommitEnv(RealFs(), ManualClock(NOW), lambda _: None)
    assert finish_commit(tmp_path, env) is None
    assert not path.exists()


def test_a_batch_with_a_time_beyond_64_bits_wraps_as_in_java() -> None:
    least = -(1 << 63)
    data = build_batch([NewRecord(b"k", b"v", least), NewRecord(b"k", b"v", least + 1)])
    at = mutate.FIELDS["base_timestamp"][0]
    data = mutate.checked(data[:at] + struct.pack(">q", (1 << 63) - 1) + data[at + 8 :])
    [row] = scan_batches(data, "fuzz-0")
    times = [r.create_time for r in records_of(data, row, "fuzz-0")]
    assert times == [(1 << 63) - 1, least]
