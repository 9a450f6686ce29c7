"""`lapse dump PATH`: batches and records of a segment or a partition, and its side files.

With `--json` the lines are those of the oracle's `dump` (tests/oracle), so the two can be compared
with `diff`. Only looks; reads segments as they are on disk, torn tails included.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lapse.base.errors import CorruptData, LapseError
from lapse.kernels.layout import CODEC_MASK, CONTROL, TRANSACTIONAL
from lapse.log.producers import Producer, Producers
from lapse.records.batch import records_of, scan_prefix
from lapse.records.control import control_type, coordinator_epoch
from lapse.records.layout import Codec, TimestampType, horizon_of, timestamp_type_of

_INT_MAX = (1 << 31) - 1
_SHORT = 8  # bytes; a longer value is shown as a hash unless --values hex
_TYPE_NAMES = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}

Line = dict[str, Any]


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "dump",
        help="show batches and records of a segment or partition directory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a .log file or a partition directory"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--no-records", action="store_true", help="batch headers only")
    parser.add_argument(
        "--values",
        choices=("hash", "hex"),
        default="hash",
        help="how values longer than 8 bytes are shown (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0, or 1 if something could not be read to its end."""
    path: Path = args.path
    if not path.exists():
        raise LapseError(f"{path}: no such file or directory")
    logs = sorted(path.glob("*.log")) if path.is_dir() else [path]
    show = _as_json if args.json else _as_text
    complete = True
    for log in logs:
        try:
            for line in dump_log(log, records=not args.no_records, values=args.values):
                sys.stdout.write(show(line))
        except CorruptData as e:
            complete = False
            sys.stdout.flush()
            print(f"lapse: {e}", file=sys.stderr)
    if path.is_dir():
        for side in sorted(p for p in path.iterdir() if p.is_file()):
            sys.stdout.write(show(dump_side_file(side)))
    return 0 if complete else 1


def dump_log(path: Path, *, records: bool, values: str) -> Iterator[Line]:
    """Batches of a log file, each with its records; raises CorruptData at the first bad one."""
    data = np.fromfile(path, np.uint8)
    rows, _, _ = scan_prefix(data, check_crc=False)
    checked, valid_bytes, reason = scan_prefix(data)
    for row in rows:
        if row["magic"] < 2:
            position = int(row["position"])
            raise CorruptData(
                str(path), position, f"message format v{row['magic']} is not shown yet"
            )
        yield _batch(path, row, crc_ok=int(row["position"]) < valid_bytes)
        if int(row["position"]) >= valid_bytes:
            break
        if records:
            for i, record in enumerate(records_of(data, row, str(path))):
                yield _record(row, i, record, values)
    if len(checked) < len(rows) or reason is not None:
        raise CorruptData(str(path), valid_bytes, reason or "unreadable batch")


def _batch(path: Path, row: np.void, *, crc_ok: bool) -> Line:
    attributes = int(row["attributes"])
    sequence = int(row["base_sequence"])
    span = int(row["last_offset"] - row["base_offset"])
    return {
        "type": "batch",
        "file": path.name,
        "pos": int(row["position"]),
        "size": int(row["size"]),
        "magic": int(row["magic"]),
        "base_offset": int(row["base_offset"]),
        "last_offset": int(row["last_offset"]),
        "leader_epoch": int(row["leader_epoch"]),
        "crc": int(row["crc"]),
        "crc_ok": crc_ok,
        "attributes": attributes,
        "base_timestamp": int(row["base_timestamp"]),
        "delete_horizon": horizon_of(row),
        "max_timestamp": int(row["max_timestamp"]),
        "timestamp_type": _TYPE_NAMES[timestamp_type_of(row)],
        "codec": _codec_name(attributes & CODEC_MASK),
        "pid": int(row["producer_id"]),
        "epoch": int(row["producer_epoch"]),
        "base_seq": sequence,
        "last_seq": sequence_after(sequence, span),
        "txn": bool(attributes & TRANSACTIONAL),
        "control": bool(attributes & CONTROL),
        "count": int(row["count"]),
    }


def _codec_name(codec: int) -> str:
    """Kafka's name, or the number of a codec nobody knows."""
    return Codec(codec).name.lower() if codec <= Codec.ZSTD else str(codec)


def sequence_after(sequence: int, n: int) -> int:
    """The sequence `n` records on; sequences wrap within 31 bits, -1 is none."""
    return -1 if sequence < 0 else (sequence + n) & _INT_MAX


def _record(row: np.void, i: int, record: Any, values: str) -> Line:
    line = {
        "type": "record",
        "i": i,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "seq": sequence_after(int(row["base_sequence"]), record.offset - int(row["base_offset"])),
        "size": record.size,
        "key": None if record.key is None else record.key.hex(),
        "value": _shown(record.value, values),
    }
    if int(row["attributes"]) & CONTROL:
        line["control_type"] = control_type(record.key)
        if line["control_type"] in ("ABORT", "COMMIT"):
            line["coord_epoch"] = coordinator_epoch(record.value)
    if record.headers:
        line["headers"] = [[name, _shown(value, "hex")] for name, value in record.headers]
    return line


def _shown(data: bytes | None, mode: str) -> str | None:
    if data is None:
        return None
    if mode == "hex" or len(data) <= _SHORT:
        return data.hex()
    return f"sha256:{hashlib.sha256(data).hexdigest()[:32]}:{len(data)}"


def dump_side_file(path: Path) -> Line:
    """Name, size and hash of any file; entries of those we know."""
    data = path.read_bytes()
    line: Line = {
        "type": "file",
        "name": path.name,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    base = int(path.name[:20]) if path.name[:20].isdigit() else -1
    if path.suffix == ".index":
        line["entries"] = [[base + o, p] for o, p in struct.iter_unpack(">ii", _whole(data, 8))]
    elif path.suffix == ".timeindex":
        line["entries"] = [[t, base + o] for t, o in struct.iter_unpack(">qi", _whole(data, 12))]
    elif path.suffix == ".txnindex":
        names = ("version", "pid", "first", "last", "lso")
        line["entries"] = [
            dict(zip(names, entry, strict=True))
            for entry in struct.iter_unpack(">hqqqq", _whole(data, 34))
        ]
    elif path.suffix == ".snapshot":
        line["entries"] = [_producer(p) for p in Producers.from_snapshot(data, str(path))]
    return line


def _whole(data: bytes, entry_bytes: int) -> bytes:
    return data[: len(data) // entry_bytes * entry_bytes]


def _producer(producer: Producer) -> Line:
    first = producer.transaction_first_offset
    return {
        "pid": producer.producer_id,
        "epoch": producer.epoch,
        "last_seq": producer.last_sequence,
        "last_data_offset": producer.last_data_offset,
        "last_ts": producer.last_timestamp,
        "coord_epoch": producer.coordinator_epoch,
        "txn_first": None if first < 0 else first,
    }


def _as_json(line: Line) -> str:
    return msgspec.json.encode(line).decode() + os.linesep


def _as_text(line: Line) -> str:
    kind = line["type"]
    indent = "  " if kind == "record" else ""
    shown = " ".join(f"{k}={_plain(v)}" for k, v in line.items() if k not in ("type", "sha256"))
    return f"{indent}{kind} {shown}{os.linesep}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
