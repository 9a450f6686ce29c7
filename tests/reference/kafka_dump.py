"""What `DumpLogSegments` of Apache Kafka 4.3 prints, as the line dicts of `lapse dump --json`.

Only what Kafka prints is in them, under our names. Its text has no escapes: a value with line ends
spreads over lines, so everything that does not begin like a line of its own belongs to the record
before.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]

_TYPES = r"(?P<timestamp_type>CreateTime|LogAppendTime|NoTimestampType): (?P<max_timestamp>-?\d+)"
_SIZES = (
    rf"position: (?P<pos>\d+) {_TYPES} size: (?P<size>\d+) magic: (?P<magic>\d)"
    r" compresscodec: (?P<codec>\S+) crc: (?P<crc>\d+) isvalid: (?P<crc_ok>\w+)"
)
_BATCH = re.compile(
    r"baseOffset: (?P<base_offset>\d+) lastOffset: (?P<last_offset>\d+) count: (?P<count>\d+)"
    r" baseSequence: (?P<base_seq>-?\d+) lastSequence: (?P<last_seq>-?\d+)"
    r" producerId: (?P<pid>-?\d+) producerEpoch: (?P<epoch>-?\d+)"
    r" partitionLeaderEpoch: (?P<leader_epoch>-?\d+)"
    r" isTransactional: (?P<txn>\w+) isControl: (?P<control>\w+)"
    rf" deleteHorizonMs: (?P<delete_horizon>\S+) {_SIZES}"
)
_LEGACY_BATCH = re.compile(rf"offset: (?P<last_offset>\d+) {_SIZES}")
_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?P<timestamp_type>CreateTime|LogAppendTime|NoTimestampType):"
    r" (?P<timestamp>-?\d+) keySize: (?P<key_size>-?\d+) valueSize: (?P<value_size>-?\d+)"
    r"(?: sequence: (?P<seq>-?\d+) headerKeys: \[(?P<header_keys>.*?)\](?= endTxn| key:| payload:|"
    r" [A-Z]\w+: \{|$))?"
    r"(?: isValid: (?P<crc_ok>\w+) crc: (?P<crc>\d+))?"
    r"(?: endTxnMarker: (?P<control_type>\w+) coordinatorEpoch: (?P<coord_epoch>-?\d+))?"
    r"(?P<text>.*)",
    re.DOTALL,
)
_ROWS = {
    "index": re.compile(r"offset: (\d+) position: (\d+)"),
    "timeindex": re.compile(r"timestamp: (-?\d+) offset: (\d+)"),
    "txnindex": re.compile(
        r"version: (?P<version>\d+) producerId: (?P<pid>\d+) firstOffset: (?P<first>\d+)"
        r" lastOffset: (?P<last>\d+) lastStableOffset: (?P<lso>\d+)"
    ),
    "snapshot": re.compile(
        r"producerId: (?P<pid>\d+) producerEpoch: (?P<epoch>\d+)"
        r" coordinatorEpoch: (?P<coord_epoch>-?\d+) currentTxnFirstOffset: (?P<txn_first>\S+)"
        r" lastTimestamp: (?P<last_ts>-?\d+)(?: firstSequence: (?P<first_seq>-?\d+)"
        r" lastSequence: (?P<last_seq>-?\d+) lastOffset: (?P<last_data_offset>\d+)"
        r" offsetDelta: (?P<offset_delta>\d+) timestamp: (?P<ts>-?\d+))?"
    ),
}
_DUMPING = "Dumping "
_TAIL = re.compile(r"Found (\d+) invalid bytes at the end of \S+\.log")
_STARTS = re.compile(
    rf"Dumping \d{{20}}\.|Log starting offset: |baseOffset: |offset: |\| offset: |{_TAIL.pattern}"
)


@dataclass(frozen=True, slots=True)
class KafkaDump:
    """One run of the tool.

    Attributes:
        lines: of log files, in order.
        entries: of other files, by name.
        complaints: what it said on stderr.
        torn: bytes at the end of a log file that are no whole batch, by name.
    """

    lines: list[Line] = field(default_factory=list)
    entries: dict[str, list[Any]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    torn: dict[str, int] = field(default_factory=dict)

    @property
    def died(self) -> bool:
        """Whether it ended before its files did."""
        return any(line.startswith("EXCEPTION") for line in self.complaints)


def read_kafka_dump(path: Path) -> KafkaDump:
    """A recorded run; the file may be compressed instead."""
    zipped = path.with_name(path.name + ".gz")
    data = gzip.decompress(zipped.read_bytes()) if zipped.exists() else path.read_bytes()
    text, _, said = data.decode().partition("#### stderr\n")
    dump = KafkaDump(complaints=said.split("\n"))
    name = ""
    for line in _lines(text):
        if line.startswith(_DUMPING):
            name = line.removeprefix(_DUMPING)
            if not name.endswith(".log"):
                dump.entries[name] = []
        elif name.endswith(".log"):
            if tail := _TAIL.fullmatch(line):
                dump.torn[name] = int(tail[1])
            elif not line.startswith("Log starting offset"):
                dump.lines.append(_log_line(line, name))
        elif not line.endswith(" is empty."):
            dump.entries[name].append(_entry(line, name.rpartition(".")[2]))
    return dump


def _lines(text: str) -> Iterator[str]:
    """Lines, those that go on with a record's text put back together."""
    pending: str | None = None
    for line in text.removesuffix("\n").split("\n"):
        if pending is not None and pending.startswith("|") and not _STARTS.match(line):
            pending += "\n" + line
            continue
        if pending is not None:
            yield pending
        pending = line
    if pending:
        yield pending


def _log_line(text: str, file: str) -> Line:
    if text.startswith("|"):
        found = _RECORD.fullmatch(text)
        assert found is not None, text
        line = _typed(found)
        line["text"] = readable(line["text"])
        if (keys := found["header_keys"]) is not None:
            line["header_keys"] = keys.split(",") if keys else []
        return {"type": "record", **line}
    found = _BATCH.fullmatch(text) or _LEGACY_BATCH.fullmatch(text)
    assert found is not None, text
    return {"type": "batch", "file": file, **_typed(found)}


def _entry(text: str, kind: str) -> Any:
    found = _ROWS[kind].fullmatch(text)
    assert found is not None, text
    return _typed(found) if found.groupdict() else [int(group) for group in found.groups()]


_WORDS = {"true": True, "false": False, "OptionalLong.empty": None}
_AS_TEXT = {"text", "header_keys", "codec", "timestamp_type", "control_type"}


def _typed(found: re.Match[str]) -> Line:
    return {
        name: text if name in _AS_TEXT else _value(text)
        for name, text in found.groupdict().items()
        if text is not None
    }


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    return int(text.removeprefix("OptionalLong[").removesuffix("]"))


def said_of(key: bytes | None, value: bytes | None) -> str:
    """The end of a record's line, as the tool prints it without a decoder; `readable`."""
    parts = (("key", key), ("payload", value))
    said = (f" {name}: {data.decode(errors='replace')}" for name, data in parts if data is not None)
    return readable("".join(said))


def readable(text: str) -> str:
    """Java and Python put different numbers of U+FFFD for the same bytes: one for any number."""
    return re.sub("\ufffd+", "\ufffd", text)


def decoded(text: str) -> tuple[Any, Any]:
    """Key and value out of the end of a line of an internal topic; a tombstone is None."""
    key, _, payload = text.removeprefix(" key: ").partition(" payload: ")
    return json.loads(key), None if payload == "<DELETE>" else json.loads(payload)
