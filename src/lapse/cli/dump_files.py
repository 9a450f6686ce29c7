"""Lines of `lapse dump` for every file that is not a log: one a file.

`entries` are those of indexes, snapshots and checkpoints; `content` what a small text file or a
summary says. Name, size and hash are shown of any file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, CorruptData
from lapse.cli.dump_log import Line, Report, name_text
from lapse.log import append_times, checkpoints, summary
from lapse.log.producers import Producer, Producers
from lapse.log.segment import base_offset_of

_TXN_ENTRY = ("version", "pid", "first", "last", "lso")


def side_files(directory: Path) -> list[Path]:
    """The files of a partition or log directory, last what Lapse keeps beside its segments."""
    plain = sorted(p for p in directory.iterdir() if p.is_file())
    beside = directory / summary.FOLDER
    kept = [sorted(beside.glob(f"*{ours.SUFFIX}")) for ours in (summary, append_times)]
    return [*plain, *kept[0], *kept[1]]


def dump_side_file(path: Path, name: str, report: Report) -> Line:
    """Name, size and hash of a file; what it says, where it is one we know."""
    data = path.read_bytes()
    line: Line = {
        "type": "file",
        "name": name_text(name),
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    reader = _BY_NAME.get(path.name) or _BY_SUFFIX.get(path.suffix)
    if reader is None:
        return line
    try:
        line |= reader(path, data, report)
    except CorruptData as e:
        report(e)
    except NOT_JSON as e:
        report(CorruptData(str(path), 0, str(e)))
    return line


# --- indexes and snapshots ----------------------------------------------------------------------


def _offset_index(path: Path, data: bytes, report: Report) -> Line:
    return _table(path, data, report, ">ii", lambda base, entry: [base + entry[0], entry[1]])


def _time_index(path: Path, data: bytes, report: Report) -> Line:
    return _table(path, data, report, ">qi", lambda base, entry: [entry[0], base + entry[1]])


def _txn_index(path: Path, data: bytes, report: Report) -> Line:
    return _table(
        path, data, report, ">hqqqq", lambda _, entry: dict(zip(_TXN_ENTRY, entry, strict=True))
    )


def _table(
    path: Path, data: bytes, report: Report, layout: str, shown: Callable[[int, Any], Any]
) -> Line:
    """Entries of equal size, each shown by the offset that the file's name begins with.

    The zeros after them, where Kafka allocated ahead, are only counted.
    """
    base = base_offset_of(path.name)
    if base is None:
        return {}
    width = struct.calcsize(layout)
    whole = len(data) // width * width
    if whole < len(data):
        report(CorruptData(str(path), whole, "entry cut off"))
    used = -(-len(data[:whole].rstrip(b"\0")) // width) * width
    entries = struct.iter_unpack(layout, data[:used])
    line: Line = {"entries": [shown(base, entry) for entry in entries]}
    if used < whole:
        line["padding_bytes"] = whole - used
    return line


def _producer(producer: Producer) -> Line:
    first = producer.transaction_first_offset
    last = producer.batches[-1] if producer.batches else None
    return {
        "pid": producer.producer_id,
        "epoch": producer.epoch,
        "first_seq": -1 if last is None else last.first_sequence,
        "last_seq": producer.last_sequence,
        "last_data_offset": producer.last_data_offset,
        "offset_delta": 0 if last is None else last.offset_delta,
        "last_ts": producer.last_timestamp,
        "coord_epoch": producer.coordinator_epoch,
        "txn_first": None if first < 0 else first,
    }


# --- text files ---------------------------------------------------------------------------------


def _append_times(path: Path, data: bytes, report: Report) -> Line:
    size = append_times.made_for(data)
    if size is None:
        return _time_index(path, data, report)
    return {"made_for": size, **_time_index(path, data[append_times.ENTRY_BYTES :], report)}


def _offsets(path: Path, _data: bytes, _report: Report) -> Line:
    found = checkpoints.read_offsets(path)
    return {"entries": [[tp.topic, tp.partition, offset] for tp, offset in found.items()]}


def _partition_metadata(path: Path, data: bytes, _report: Report) -> Line:
    checkpoints.read_topic_id(path.parent)  # raises CorruptData
    lines = (line.split(":", 1) for line in data.decode().splitlines() if ":" in line)
    return {"content": {key.strip(): value.strip() for key, value in lines}}


def _summary(_path: Path, data: bytes, _report: Report) -> Line:
    content = from_json(data, dict[str, Any])
    if keys := content.get("keys"):
        content["keys"] = f"{len(keys)} characters"  # a sketch: nothing for people
    return {"content": content}


Reader = Callable[[Path, bytes, Report], Line]

_BY_SUFFIX: dict[str, Reader] = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    ".snapshot": lambda path, data, _report: {
        "entries": [_producer(p) for p in Producers.from_snapshot(data, str(path))]
    },
    summary.SUFFIX: _summary,
    append_times.SUFFIX: _append_times,
}
_BY_NAME: dict[str, Reader] = {
    checkpoints.RECOVERY_POINT: _offsets,
    checkpoints.LOG_START: _offsets,
    checkpoints.CLEANER: _offsets,
    checkpoints.HIGH_WATERMARK: _offsets,
    checkpoints.LEADER_EPOCHS: lambda path, *_: {
        "entries": [list(entry) for entry in checkpoints.read_epochs(path)]
    },
    checkpoints.META_PROPERTIES: lambda path, *_: {"content": checkpoints.read_meta(path.parent)},
    checkpoints.PARTITION_METADATA: _partition_metadata,
    checkpoints.CLEAN_SHUTDOWN: lambda _path, data, _report: {
        "content": msgspec.json.decode(data) if data else {}
    },
}
