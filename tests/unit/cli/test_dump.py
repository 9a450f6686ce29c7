"""`lapse dump`: what it shows of sound files, torn ones, and its exit codes.

That its lines are real Kafka's is shown in tests/golden.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.dump_log import sequence_after
from lapse.cli.main import main
from lapse.coordination.records.entries import encode_entry
from lapse.coordination.records.offsets import OFFSET_COMMIT, OffsetCommitKey, OffsetCommitValue
from lapse.log.summary import Summary, encode_summary
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
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
        (patched(TWO, 16, ">b", 1), "checksum does not match", 2),
        (patched(TWO, 16, ">b", 3), "unknown message format", 1),
    ],
    ids=["torn", "torn header", "zeros", "garbled", "codec", "count", "payload", "old", "new"],
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
    lines, err = dump(capsys, directory, "--no-records", code=1)
    assert err == f"lapse: {directory / base}.index: entry cut off at byte 16\n"
    files = {line["name"]: line for line in lines if line["type"] == "file"}
    assert list(files) == sorted(p.name for p in directory.iterdir() if p.is_file())
    assert files[f"{base}.index"]["entries"] == [[6, 0], [9, 100]]
    assert files[f"{base}.timeindex"]["entries"] == [[99, 9]]
    assert files[f"{base}.txnindex"]["entries"] == [
        {"version": 0, "pid": 7, "first": 1, "last": 2, "lso": 3}
    ]
    plain = files["leader-epoch-checkpoint"]
    assert plain["entries"] == []
    assert (plain["size"], plain["sha256"]) == (4, hashlib.sha256(b"0\n0\n").hexdigest())


@pytest.mark.parametrize("name", ["old.index", "x.timeindex", "2.txnindex", "\u00b2.index"])
def test_an_index_of_no_offset_is_a_file_like_any(
    segment: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    segment.with_name(name).write_bytes(bytes(range(24)))
    lines, err = dump(capsys, segment.parent, "--no-records")
    [shown] = [line for line in lines if line.get("name") == name]
    assert (shown["size"], "entries" in shown, err) == (24, False, "")


def test_names_that_are_not_utf_8_are_shown_escaped(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (b"caf\xe9", b"caf\xe9.log"):
        segment.with_name(os.fsdecode(name)).write_bytes(TWO)
    lines, _ = dump(capsys, segment.parent, "--no-records")
    assert "caf\\xe9.log" in {line.get("file") for line in lines}
    assert "caf\\xe9" in {line.get("name") for line in lines}
    assert main(["dump", str(segment.parent)]) == 0
    assert "name=caf\\xe9 " in capsys.readouterr().out


def test_text_files_and_summaries(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = segment.parent
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n2\n0 0\n3 9\n")
    (directory / "partition.metadata").write_bytes(b"version: 0\ntopic_id: e-6_nbEXQsqcOzITxT8rwg")
    (directory / ".lapse").mkdir()
    name = f".lapse/{segment.stem}.summary"
    (directory / name).write_bytes(encode_summary(Summary(5, 10, 8), keys="A" * 3000))
    lines, _ = dump(capsys, directory, "--no-records")
    files = {line["name"]: line for line in lines if line["type"] == "file"}
    assert files["leader-epoch-checkpoint"]["entries"] == [[0, 0], [3, 9]]
    assert files["partition.metadata"]["content"] == {
        "version": "0", "topic_id": "e-6_nbEXQsqcOzITxT8rwg",
    }  # fmt: skip
    assert list(files)[-1] == name
    summary = files[name]["content"]
    assert (summary["base_offset"], summary["size"], summary["end_offset"]) == (5, 10, 8)
    assert summary["keys"] == "3000 characters"


def test_a_log_directory(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = segment.parent.parent
    (directory / "meta.properties").write_bytes(b"#\n#now\nnode.id=1\nversion=1\n")
    (directory / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\nt 0 7\n")
    (directory / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":9}')
    (directory / "cleaner-offset-checkpoint").write_bytes(b"7\n")
    lines, err = dump(capsys, directory, code=1)
    assert [line["type"] for line in lines] == ["file"] * 4
    files = {line["name"]: line for line in lines}
    assert files["meta.properties"]["content"] == {"node.id": "1", "version": "1"}
    assert files["recovery-point-offset-checkpoint"]["entries"] == [["t", 0, 7]]
    assert files[".kafka_cleanshutdown"]["content"] == {"version": 0, "brokerEpoch": 9}
    assert "unknown checkpoint version '7'" in err


def test_indexes_that_were_allocated_ahead(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment.with_suffix(".index")
    path.write_bytes(struct.pack(">ii", 4, 100) + bytes(800))
    *_, line, _ = dump(capsys, segment.parent, "--no-records")[0]
    assert (line["entries"], line["padding_bytes"]) == ([[9, 100]], 800)


def test_a_damaged_side_file_is_shown_and_said(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment.with_name(f"{9:020d}.snapshot")
    path.write_bytes(b"\0\1garbage")
    lines, err = dump(capsys, segment.parent, code=1)
    assert "entries" not in lines[-1]
    assert (lines[-1]["name"], lines[-1]["size"]) == (path.name, 9)
    assert err.startswith(f"lapse: {path}: ")


def test_what_comes_after_a_bad_batch_is_shown(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = bytearray(ONE + TWO + ONE)
    damaged[len(ONE) + len(TWO) - 2] ^= 1  # in the last value of TWO
    segment.write_bytes(damaged)
    lines, err = dump(capsys, segment, code=1)
    batches = [line for line in lines if line["type"] == "batch"]
    assert [line["crc_ok"] for line in batches] == [True, False, True]
    assert err == f"lapse: {segment}: checksum does not match at byte {len(ONE)}\n"
    # Its records too, as far as they parse.
    assert [line["offset"] for line in lines if line["type"] == "record"] == [5, 6, 9, 5, 6]


def test_tombstones_that_have_a_value(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        NewRecord(b"k", b"why", tombstone=True),
        NewRecord(b"l", b"v"),
        NewRecord(b"m", None),
    ]
    segment.write_bytes(build_batch(records))
    batch, *shown = dump(capsys, segment)[0]
    assert batch["valued_tombstones"] is True
    assert [line.get("tombstone") for line in shown] == [True, None, None]
    assert shown[0]["value"] == b"why".hex()


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_formats(
    magic: int, codec: Codec, segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [Message(n, 70 + n, b"k", b"v" * n) for n in (5, 7)]
    segment.write_bytes(build_messages(messages, MessageSpec(magic, codec)))
    lines, _ = dump(capsys, segment)
    batches = [line for line in lines if line["type"] == "batch"]
    shown = [line for line in lines if line["type"] == "record"]
    wrapped = codec is not Codec.NONE
    assert [(b["base_offset"], b["last_offset"]) for b in batches] == (
        [(5, 7)] if wrapped else [(5, 5), (7, 7)]
    )
    for line in batches:
        assert (line["magic"], line["codec"], line["crc_ok"]) == (magic, codec.name.lower(), True)
        assert (line["count"], line["pid"], line["txn"], line["control"]) == (
            None,
            -1,
            False,
            False,
        )
        assert line["timestamp_type"] == ("CreateTime" if magic else "NoTimestampType")
        assert "leader_epoch" not in line
        assert "delete_horizon" not in line
    assert [(r["offset"], r["timestamp"]) for r in shown] == [
        (5, 75 if magic else -1), (7, 77 if magic else -1),
    ]  # fmt: skip
    assert [r["value"] for r in shown] == ["76" * 5, "76" * 7]
    assert len({r["crc"] for r in shown}) == 2


def test_a_message_inside_with_a_wrong_checksum(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = bytearray(build_messages([Message(5, 0, b"k", b"v")], MessageSpec(1)))
    inner[-1] ^= 1
    body = struct.pack(">bbqi", 1, Codec.GZIP, 0, -1) + struct.pack(">i", 0)
    zipped = gzip.compress(bytes(inner))
    body = body[:-4] + struct.pack(">i", len(zipped)) + zipped
    message = struct.pack(">I", zlib.crc32(body)) + body
    segment.write_bytes(struct.pack(">qi", 5, len(message)) + message)
    [line], err = dump(capsys, segment, code=1)
    assert (line["crc_ok"], line["last_offset"]) == (True, 5)
    assert "the checksum of a message inside does not match at byte 0" in err


# --- internal topics ------------------------------------------------------------------------------

KEY = OffsetCommitKey(group="g", topic="t", partition=0)
VALUE = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=3)


def offsets_log(path: Path, *more: NewRecord) -> Path:
    path.mkdir()
    log = path / f"{0:020d}.log"
    key, value = encode_entry(OFFSET_COMMIT, KEY, VALUE)
    log.write_bytes(build_batch([NewRecord(key, value, 5), *more]))
    return path


def test_records_of_internal_topics_are_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = offsets_log(tmp_path / "__consumer_offsets-3", NewRecord(b"\0\x63?", b"?"))
    lines, _ = dump(capsys, path)
    _, first, second, _ = lines
    assert first["decoded"] == {
        "id": 1, "name": "OFFSET_COMMIT", "version": 4,
        "key": {"group": "g", "topic": "t", "partition": 0},
        "value": {"offset": 7, "leaderEpoch": -1, "metadata": "m", "commitTimestamp": 3},
    }  # fmt: skip
    assert second["decoded"] == {"id": 0x63, "name": "UNKNOWN"}
    # A single segment goes by its directory's name as well.
    assert dump(capsys, path / f"{0:020d}.log")[0] == lines[:-1]
    assert "decoded" not in dump(capsys, path, "--decode", "none")[0][1]
    assert main(["dump", str(path)]) == 0
    assert ' decoded={"id":1,"name":"OFFSET_COMMIT"' in capsys.readouterr().out


def test_elsewhere_they_are_decoded_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = offsets_log(tmp_path / "copy")
    assert "decoded" not in dump(capsys, path)[0][1]
    assert dump(capsys, path, "--decode", "offsets")[0][1]["decoded"]["name"] == "OFFSET_COMMIT"
    [group, offset] = dump(capsys, path, "--state", "--decode", "offsets")[0]
    assert (group["group"], offset["offset"]) == ("g", 7)


def test_a_record_that_does_not_decode_is_shown_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = offsets_log(tmp_path / "__consumer_offsets-3", NewRecord(b"\0\1\0", b"?"))
    lines, err = dump(capsys, path, code=1)
    assert "decoded" in lines[1]
    assert "decoded" not in lines[2]
    assert "offset 1: OffsetCommitKey v0: ends early" in err
    lines, err = dump(capsys, path, "--state", code=1)
    assert [line["type"] for line in lines] == ["group", "offset"]
    assert "offset 1: OffsetCommitKey v0: ends early" in err


@pytest.mark.parametrize("decode", [[], ["--decode", "none"]])
def test_state_of_what_has_none(
    decode: list[str], segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = dump(capsys, segment.parent, "--state", *decode, code=2)
    assert "holds no partition of an internal topic" in err
    _, err = dump(capsys, segment, "--state", *decode, code=2)
    assert "allowed is a partition or a log directory" in err


def test_only_looks(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user who may not write, on files that somebody else owns."""
    before = sorted((p.name, p.stat().st_mtime_ns) for p in segment.parent.rglob("*"))
    os.chmod(segment, 0o444)
    dump(capsys, segment.parent)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in segment.parent.rglob("*")) == before


def test_what_vanishes_meanwhile_is_not_there(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A live broker removes files; a link to nowhere is listed and cannot be read, too."""
    os.symlink(segment.parent / "gone", segment.with_name(f"{4:020d}.log"))
    lines, err = dump(capsys, segment.parent)
    assert err == ""
    assert [line["file"] for line in lines if line["type"] == "batch"] == [segment.name] * 2


def test_no_such_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = dump(capsys, tmp_path / "nothing", code=3)
    assert "nothing: no such file or directory" in err


def test_a_name_that_no_file_system_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("n" * 300)
    _, err = dump(capsys, path, code=3)
    assert err == f"lapse: reading {path}: File name too long\n"


def test_an_empty_log(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment.write_bytes(b"")
    assert dump(capsys, segment)[0] == []


def test_sequences_wrap_within_31_bits() -> None:
    assert sequence_after(5, 3) == 8
    assert sequence_after((1 << 31) - 1, 1) == 0
    assert sequence_after(-1, 3) == -1


# --- some of it -----------------------------------------------------------------------------------


def test_a_key_and_the_batches_that_have_it(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment.parent / "leader-epoch-checkpoint").write_text("0\n0\n")
    batch, record = dump(capsys, segment.parent, "--key", "k")[0]
    assert (batch["base_offset"], record["offset"], record["key"]) == (5, 5, "6b")
    assert dump(capsys, segment, "--key", "never")[0] == []
    [batch, record] = dump(capsys, segment, "--key", "")[0]
    assert (batch["base_offset"], record["offset"]) == (9, 9), "an empty key is one, and null none"


def test_from_an_offset_on(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = dump(capsys, segment, "--from-offset", 6)[0]
    assert [(line["type"], line.get("offset")) for line in lines] == [
        ("batch", None), ("record", 6), ("batch", None), ("record", 9),
    ]  # fmt: skip
    lines = dump(capsys, segment.parent, "--from-offset", 7, "--no-records")[0]
    assert [line["base_offset"] for line in lines] == [9]
    assert dump(capsys, segment, "--from-offset", 10)[0] == []
    (segment.parent / f"{10:020d}.log").write_bytes(b"damaged")
    segment.write_bytes(b"so is this one")
    _, said = dump(capsys, segment.parent, "--from-offset", 10, code=1)
    assert said.count("\n") == 1, "a segment that ends before is not read"


def test_as_text(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [line for line in dump(capsys, segment, "--text")[0] if line["type"] == "record"]
    assert [(r["key"], r["value"]) for r in records] == [
        ("k", "short"), (None, None), ("", LONG.decode()),
    ]  # fmt: skip
    assert records[0]["headers"] == [["h", None], ["h", "\\x01"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--key", "k", "--no-records"], "--key: not with --no-records"),
        (["--state", "--text"], "--text: not with --state"),
        (["--state", "--from-offset", "3"], "--from-offset: not with --state"),
        (["--from-offset", "-1"], "--from-offset"),
    ],
)
def test_what_makes_no_sense_together(
    segment: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["dump", str(segment.parent), *words])
    except SystemExit as e:
        code = int(str(e.code))
    assert code == 2
    assert said in capsys.readouterr().err
