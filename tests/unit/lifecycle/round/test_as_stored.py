"""Rounds over logs whose readers know no v2: nothing old comes out as new (KIP-32's way back)."""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from lapse.base.config import topic_config
from lapse.cli.main import main
from lapse.kernels.layout import LEGACY_CRC
from lapse.log.partition_log import PartitionLog
from lapse.log.reader import DirectoryView
from lapse.records.batch import Record, records_of, scan_batches
from lapse.records.layout import Codec
from tests.property.strategies import OLD_CODECS
from tests.support.lifecycle.round.stored_logs import (
    T,
    clean,
    settings,
    with_log,
    wrapped,
    write_log,
)
from tests.support.lifecycle.rounds import NOW


def explained(
    capsys: pytest.CaptureFixture[str], path: Path, named: dict[str, str], *more: str
) -> str:
    said = [word for name, value in named.items() for word in ("-c", f"{name}={value}")]
    capsys.readouterr()
    assert main(["explain", str(path), *said, "--now", str(NOW + 86_400_000), "--json", *more]) == 0
    line = json.loads(capsys.readouterr().out)
    told: str = line["fate"]["text"] if line["fate"] else line["text"]
    return told


def stored(path: Path) -> tuple[set[int], list[Record]]:
    """(formats of what is there, records)."""
    magics, records = set[int](), []
    for file in sorted((path / "t-0").glob("*.log")):
        data = file.read_bytes()
        for row in scan_batches(data, str(file)):
            magics.add(int(row["magic"]))
            records += list(records_of(data, row, str(file)))
    return magics, records


def living(records: list[Record]) -> list[Record]:
    """The last of each key; a tombstone is one."""
    last = {record.key: record for record in records}
    return sorted(last.values(), key=lambda record: record.offset)


def as_told(record: Record) -> tuple[Any, ...]:
    return (record.offset, record.key, record.value, record.timestamp, record.create_time)


@pytest.mark.parametrize("append_time", [False, True], ids=["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_round_keeps_the_format(
    tmp_path: Path, magic: int, codec: Codec, append_time: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """And offsets, keys, values, both times; tombstones stay, and call for no more rounds."""
    named = settings(magic)
    write_log(tmp_path, magic, codec, topic_config(named), append_time=append_time)
    _, before = stored(tmp_path)
    shutil.copytree(tmp_path / "t-0", copy := tmp_path.with_suffix(".before") / "t-0")
    assert clean(capsys, tmp_path, named, NOW + 10)["outcome"] == "cleaned"
    magics, after = stored(tmp_path)
    assert magics == {magic}
    assert list(map(as_told, after)) == list(map(as_told, living(before)))
    words = ["verify", "--before", str(copy), "--after", str(tmp_path / "t-0"),
             "-c", "cleanup.policy=compact", "--now", str(NOW + 11)]  # fmt: skip
    assert main(words) == 0, capsys.readouterr()
    for later in (1, 10, 1000):  # delete.retention.ms is long past
        assert clean(capsys, tmp_path, named, NOW + later * 86_400_000)["outcome"].startswith(
            "clean; "
        )
    assert stored(tmp_path) == (magics, after)
    assert explained(capsys, tmp_path, named).endswith(
        "clean; tombstones of old formats stay while records are written in a format before 0.11 "
        "(message.format.version, inter.broker.protocol.version): there is no room for a delete "
        "horizon"
    )
    gone = next(r.offset for r in after if r.is_tombstone)
    fate = explained(capsys, tmp_path, named, "--partition", "t-0", "--offset", str(gone))
    assert f"a tombstone of message format v{magic}; such stay while" in fate


def test_what_is_left_is_as_it_was_byte_for_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long stretches and single wrappers; ours would be other bytes, since gzip has many."""
    named = settings(1, internal_segment_bytes="1000000")
    value = random.Random(1).randbytes
    long = [foreign(n, b"own%d" % n, value(2000) if n else None) for n in range(200)]
    pairs = [(b"a", b"1"), (b"dead", None), (b"a", b"2"), (b"b", b"3")]
    single = foreign(204, b"single", b"x")
    parts = [*long, wrapped(200, 1, Codec.GZIP, *pairs, append_time=False), single]
    parts.append(wrapped(205, 1, Codec.GZIP, (b"a", b"4"), (b"c", b"5"), append_time=False))

    def fill_all(log: PartitionLog) -> None:
        for part in parts:
            log.append_raw(part, now_ms=NOW)
        log.roll(NOW)

    with_log(tmp_path, topic_config(named), fill_all)
    _, before = stored(tmp_path)
    clean(capsys, tmp_path, named, NOW + 10)
    assert list(map(as_told, stored(tmp_path)[1])) == list(map(as_told, living(before)))
    found = min((tmp_path / "t-0").glob("*.log")).read_bytes()
    assert found.startswith(b"".join(long))
    assert single in found
    assert known_tombstones(tmp_path) == 2


def known_tombstones(path: Path) -> int:
    """As the summaries of the segments tell."""
    summaries = [s.summary for s in DirectoryView(path).facts(T).segments]
    return sum(s.tombstones for s in summaries if s is not None)


def foreign(offset: int, key: bytes, value: bytes | None) -> bytes:
    """A wrapper that another gzip made: the header says another system."""
    data = bytearray(wrapped(offset, 1, Codec.GZIP, (key, value), append_time=False))
    system = data.index(b"\x1f\x8b") + 9
    data[system] = 3 if data[system] != 3 else 255
    struct.pack_into(">I", data, LEGACY_CRC, zlib.crc32(data[LEGACY_CRC + 4 :]))
    return bytes(data)


def test_a_second_round_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And until then its tombstones are known, for the day when v2 may be written."""
    named = settings(1)
    write_log(tmp_path, 1, Codec.GZIP, topic_config(named))
    clean(capsys, tmp_path, named, NOW + 10)
    _, records = stored(tmp_path)
    assert known_tombstones(tmp_path) == sum(record.is_tombstone for record in records) > 0
    logs = sorted((tmp_path / "t-0").glob("*.log"))
    assert len(logs) > 3
    files = {p: p.stat().st_ino for p in logs[:-2]}  # a small one may be put with its neighbours
    more = wrapped(200, 1, Codec.GZIP, (b"new", b"1"), append_time=False)

    def go_on(log: PartitionLog) -> None:
        log.append_raw(more, now_ms=NOW)
        log.roll(NOW)

    with_log(tmp_path, topic_config(named), go_on)
    line = clean(capsys, tmp_path, named, NOW + 86_400_000, "--force")
    assert line["outcome"] == "cleaned"
    assert files == {p: p.stat().st_ino for p in files}


def test_the_formats_of_a_log_stay_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """v0, v1 and v2 side by side, as a canary leaves them that was rolled back."""
    named = settings(1, internal_segment_bytes="100000")

    def fill_all(log: PartitionLog) -> None:
        pairs = [(b"a", b"x"), (b"b", b"y" * 30), (b"a", b"z"), (b"c", None)]
        for first, magic, codec in ((0, 0, Codec.NONE), (4, 1, Codec.GZIP), (8, 0, Codec.SNAPPY),
                                    (12, 1, Codec.NONE), (16, 1, Codec.LZ4)):  # fmt: skip
            own = [(b"own%d" % first, b"1"), *pairs]
            log.append_raw(wrapped(first * 2, magic, codec, *own, append_time=False), now_ms=NOW)
        log.roll(NOW)

    with_log(tmp_path, topic_config(named), fill_all)
    _, before = stored(tmp_path)
    assert clean(capsys, tmp_path, named, NOW + 10)["outcome"] == "cleaned"
    magics, after = stored(tmp_path)
    assert list(map(as_told, after)) == list(map(as_told, living(before)))
    assert magics == {0, 1}


def test_the_way_up_is_open_still(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once all readers know v2 the next round writes it, and tombstones get their horizon."""
    write_log(tmp_path, 1, Codec.GZIP, topic_config(settings(1)))
    clean(capsys, tmp_path, settings(1), NOW + 10)
    _, before = stored(tmp_path)
    assert clean(capsys, tmp_path, settings(2), NOW + 86_400_000)["outcome"] == "cleaned"
    magics, after = stored(tmp_path)
    assert list(map(as_told, after)) == list(map(as_told, before))
    assert 2 in magics
    assert clean(capsys, tmp_path, settings(2), NOW + 3 * 86_400_000)["outcome"] == "cleaned"
    assert not [r for r in stored(tmp_path)[1] if r.is_tombstone]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_trim_keeps_the_format(
    tmp_path: Path, magic: int, codec: Codec, capsys: pytest.CaptureFixture[str]
) -> None:
    named = settings(magic, cleanup_policy="delete", retention_ms="-1",
                     lapse_physical_delete_max_lag_ms="1000")  # fmt: skip
    write_log(tmp_path, magic, codec, topic_config(named))
    _, before = stored(tmp_path)
    with_log(tmp_path, topic_config(named), lambda log: log.delete_records(42))
    assert clean(capsys, tmp_path, named, NOW + 86_400_000)["kind"] == "trim"
    magics, after = stored(tmp_path)
    assert magics == {magic}
    assert list(map(as_told, after)) == [as_told(r) for r in before if r.offset >= 42]


def test_the_split_plan_writes_the_very_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = settings(1, internal_segment_bytes="100000")

    def fill_many(log: PartitionLog) -> None:
        for n in range(1200):
            pairs = [(b"a", b"%d" % n), (b"own%d" % n, b"v"), (b"dead%d" % (n % 700), None)]
            data = wrapped(3 * n, 1, Codec.LZ4, *pairs, append_time=False)
            log.append_raw(data, now_ms=NOW)
        log.roll(NOW)

    with_log(tmp_path / "small", topic_config(named), fill_many)
    shutil.copytree(tmp_path / "small", tmp_path / "split")
    plans = [
        clean(capsys, tmp_path / name, named, NOW + 10, *more)["plan"]
        for name, more in (("small", ()), ("split", ("--memory", "1m")))
    ]
    assert plans == ["small", "split"]
    written = [
        {path.name: path.read_bytes() for path in (tmp_path / name / "t-0").glob("*.log")}
        for name in plans
    ]
    assert written[0] == written[1]
    assert stored(tmp_path / "split")[0] == {1}
