"""`lapse dump`: what it shows of sound files, torn ones, and its exit codes.

That its lines are real Kafka's is shown in tests/golden/segments.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.dump import sequence_after
from lapse.cli.main import main
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from tests.reference.crc32c import crc32c

ONE = build_batch(
    [NewRecord(b"k", b"short", 7, (("h", None), ("h", b"\x01"))), NewRecord(None, None, 9)],
    BatchSpec(5, Codec.GZIP, producer_id=3, producer_epoch=1, base_sequence=8, leader_epoch=2),
)
LONG = b"a value of more than eight bytes"
TWO = build_batch(
    [NewRecord(b"", LONG, 70)], BatchSpec(9, timestamp_type=TimestampType.LOG_APPEND_TIME,
                                          append_time=99, horizon_ms=60),
)  # fmt: skip


def patched(data: bytes, position: int, pattern: str, value: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(pattern, out, position, value)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    path = directory / f"{5:020d}.log"
    path.write_bytes(ONE + TWO)
    return path


def dump(
    capsys: pytest.CaptureFixture[str], *args: object, code: int = 0
) -> tuple[list[dict[str, Any]], str]:
    assert main(["dump", "--json", *map(str, args)]) == code
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_batches_and_records(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = dump(capsys, segment)
    assert err == ""
    first, a, b, second, c = lines
    assert first == {
        "type": "batch", "file": segment.name, "pos": 0, "size": len(ONE), "magic": 2,
        "base_offset": 5, "last_offset": 6, "leader_epoch": 2, "crc": crc32c(ONE[21:]),
        "crc_ok": True, "attributes": 1, "base_timestamp": 7, "delete_horizon": None,
        "max_timestamp": 9, "timestamp_type": "CreateTime", "codec": "gzip", "pid": 3, "epoch": 1,
        "base_seq": 8, "last_seq": 9, "txn": False, "control": False, "count": 2,
    }  # fmt: skip
    assert a == {
        "type": "record", "i": 0, "offset": 5, "timestamp": 7, "seq": 8, "size": 20, "key": "6b",
        "value": b"short".hex(), "headers": [["h", None], ["h", "01"]],
    }  # fmt: skip
    assert (b["key"], b["value"], b["seq"], "headers" in b) == (None, None, 9, False)
    assert (second["timestamp_type"], second["delete_horizon"], second["max_timestamp"]) == (
        "LogAppendTime", 60, 99,
    )  # fmt: skip
    assert (second["base_seq"], second["last_seq"], second["attributes"]) == (-1, -1, 0x48)
    assert (c["key"], c["timestamp"], c["seq"]) == ("", 99, -1)
    assert c["value"] == f"sha256:{hashlib.sha256(LONG).hexdigest()[:32]}:{len(LONG)}"


def test_options(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = dump(capsys, segment, "--no-records")
    assert [line["type"] for line in lines] == ["batch", "batch"]
    lines, _ = dump(capsys, segment, "--values", "hex")
    assert lines[-1]["value"] == LONG.hex()
    assert main(["dump", str(segment)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert len(text) == 5
    assert text[0].startswith("batch file=")
    assert " crc_ok=true " in text[0]
    assert text[1].startswith("  record i=0 offset=5 ")
    assert "key=null value=null" in text[2]


def test_control_records(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = NewRecord(struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 12))
    segment.write_bytes(build_batch([marker], BatchSpec(control=True, transactional=True)))
    (batch, record), _ = dump(capsys, segment)
    assert (batch["control"], batch["txn"]) == (True, True)
    assert (record["control_type"], record["coord_epoch"]) == ("COMMIT", 12)


@pytest.mark.parametrize(
    ("tail", "reason", "batches"),
    [
        (TWO[:-1], "batch cut off", 1),
        (b"\0" * 5, "batch cut off", 1),
        (bytes(100), "impossible batch length", 1),
        (TWO[:-1] + b"\x07", "checksum does not match", 2),
        (patched(TWO, 21, ">h", 7), "unknown codec 7", 2),
        (patched(TWO, 57, ">i", 2), "does not parse", 2),
        (patched(TWO, 21, ">h", Codec.LZ4), "lz4", 2),
        (patched(TWO, 16, ">b", 1), "message format v1", 1),
    ],
    ids=["torn", "torn header", "zeros", "garbled", "codec", "count", "payload", "old format"],
)
def test_what_cannot_be_read_to_its_end(
    segment: Path, tail: bytes, reason: str, batches: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes before is shown, one line says what is wrong and where, and exit is 1."""
    segment.write_bytes(ONE + tail)
    other = segment.with_name(f"{20:020d}.log")
    other.write_bytes(TWO)
    lines, err = dump(capsys, segment.parent, code=1)
    mine = [line for line in lines if line.get("file") == segment.name]
    assert len(mine) == batches
    assert [line["crc_ok"] for line in mine] == [True, reason != "checksum does not match"][
        :batches
    ]
    assert [line["file"] for line in lines if line["type"] == "batch"][-1] == other.name
    assert err.count("\n") == 1
    assert err.startswith(f"lapse: {segment}: ")
    assert reason in err
    assert err.endswith(f"at byte {len(ONE)}\n")


def test_side_files(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = segment.parent
    base = f"{5:020d}"
    (directory / f"{base}.index").write_bytes(struct.pack(">iiii", 1, 0, 4, 100) + b"\0\0")
    (directory / f"{base}.timeindex").write_bytes(struct.pack(">qi", 99, 4))
    (directory / f"{base}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 1, 2, 3))
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n0\n")
    (directory / ".lapse").mkdir()
    lines, _ = dump(capsys, directory, "--no-records")
    files = {line["name"]: line for line in lines if line["type"] == "file"}
    assert list(files) == sorted(p.name for p in directory.iterdir() if p.is_file())
    assert files[f"{base}.index"]["entries"] == [[6, 0], [9, 100]]
    assert files[f"{base}.timeindex"]["entries"] == [[99, 9]]
    assert files[f"{base}.txnindex"]["entries"] == [
        {"version": 0, "pid": 7, "first": 1, "last": 2, "lso": 3}
    ]
    plain = files["leader-epoch-checkpoint"]
    assert "entries" not in plain
    assert (plain["size"], plain["sha256"]) == (4, hashlib.sha256(b"0\n0\n").hexdigest())


def test_only_looks(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user who may not write, on files that somebody else owns."""
    before = sorted((p.name, p.stat().st_mtime_ns) for p in segment.parent.rglob("*"))
    os.chmod(segment, 0o444)
    dump(capsys, segment.parent)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in segment.parent.rglob("*")) == before


def test_no_such_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = dump(capsys, tmp_path / "nothing", code=3)
    assert "nothing: no such file or directory" in err


def test_an_empty_log(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment.write_bytes(b"")
    assert dump(capsys, segment)[0] == []


def test_sequences_wrap_within_31_bits() -> None:
    assert sequence_after(5, 3) == 8
    assert sequence_after((1 << 31) - 1, 1) == 0
    assert sequence_after(-1, 3) == -1
