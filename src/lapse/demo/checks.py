"""What can be said of the end: from the files themselves, and from the ledgers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.demo.traffic import PARTITIONS, TOPIC, Sent
from lapse.lifecycle.round import ledger
from lapse.records.batch import records_of, scan_prefix

GONE_TOMBSTONE = "tombstone expired"
LOOKS_MAX = 20
Place = tuple[int, int]  # partition, offset


@dataclass
class OnDisk:
    """What decodable batches in any file hold.

    Attributes:
        live: records in the log files proper, by key; tombstones have value None.
        anywhere: keys in any file, `.deleted` ones and attempts among them.
    """

    live: list[tuple[bytes | None, bytes | None]]
    anywhere: set[bytes]
    log_bytes: int


def look_at_files(data: Path) -> OnDisk:
    """Decode every file of the data directory that begins with a batch.

    What a commit renames meanwhile is under neither name: then everything is looked at once more.
    """
    for _ in range(LOOKS_MAX):
        before = _files(data, f"{TOPIC}-*/**/*")
        found = _look_at(_files(data, "**/*"))
        if _files(data, f"{TOPIC}-*/**/*") == before:
            break
    return found


def _files(data: Path, pattern: str) -> list[Path]:
    return sorted(path for path in data.glob(pattern) if path.is_file())


def _look_at(paths: list[Path]) -> OnDisk:
    found = OnDisk([], set(), 0)
    for path in paths:
        try:
            buffer = path.read_bytes()
        except FileNotFoundError:
            continue
        rows, _, _ = scan_prefix(buffer)
        is_log = path.suffix == ".log" and path.parent.name.startswith(TOPIC)
        found.log_bytes += len(buffer) if is_log else 0
        for row in rows[rows["magic"] == 2]:
            for record in records_of(buffer, row, str(path)):
                if record.key is not None:
                    found.anywhere.add(record.key)
                if is_log:
                    found.live.append((record.key, record.value))
    return found


@dataclass
class Departures:
    """When and why each offset left: `committed_ms[partition][offset]`, 0 if it is there."""

    committed_ms: list[NDArray[np.int64]]
    round_of: list[NDArray[np.int64]]
    by_expiry: list[NDArray[np.bool_]]
    rounds: list[str]


def read_ledgers(data: Path, sent: Sent) -> Departures:
    """All ledgers of the topic, as arrays by offset."""
    ends = [0] * PARTITIONS
    for places in sent.places.values():
        for partition, offset in places:
            ends[partition] = max(ends[partition], offset + 1)
    found = Departures(
        [np.zeros(end, np.int64) for end in ends],
        [np.zeros(end, np.int64) for end in ends],
        [np.zeros(end, bool) for end in ends],
        [],
    )
    for partition in range(PARTITIONS):
        for entry in ledger.read(data / f"{TOPIC}-{partition}"):
            found.rounds.append(entry.round_id)
            for removed in entry.removed:
                offsets = np.array(removed.offsets(), np.int64) + removed.segment_base
                offsets = offsets[offsets < ends[partition]]
                found.committed_ms[partition][offsets] = entry.committed_ms
                found.round_of[partition][offsets] = len(found.rounds) - 1
                found.by_expiry[partition][offsets] = removed.reason == GONE_TOMBSTONE
    return found


@dataclass
class Story:
    """One aircraft's end."""

    key: bytes
    values: int
    last_value_sent_ms: int
    value_gone_ms: int
    value_round: str
    tombstone_sent_ms: int
    tombstone_gone_ms: int
    tombstone_round: str


def stories(keys: list[bytes], sent: Sent, left: Departures) -> list[Story]:
    """The end of each key; gone_ms is 0 for what is still there."""
    found = []
    for key in keys:
        *values, tombstone = sent.places[key]
        gone = [int(left.committed_ms[p][o]) for p, o in values]
        last = values[int(np.argmax(gone))] if all(gone) else values[gone.index(0)]
        expired = left.by_expiry[tombstone[0]][tombstone[1]]
        found.append(
            Story(
                key,
                len(values),
                sent.appended_ms[values[-1]],
                max(gone) if all(gone) else 0,
                _round(left, last),
                sent.appended_ms[tombstone],
                int(left.committed_ms[tombstone[0]][tombstone[1]]) if expired else 0,
                _round(left, tombstone),
            )
        )
    return found


def ends(told: list[list[Story]]) -> list[Story]:
    """The end of each key over all replicas, whose stories these are.

    The value is gone with the last replica that had it, the tombstone may go no earlier than that
    from any: what counts of it is the first. A replica that fetched anew what it had lost may never
    have had a value, and knows of no end; one must.
    """
    found = []
    for one in zip(*told, strict=True):
        known = [s for s in one if s.value_gone_ms and s.tombstone_gone_ms]
        value = max(known or one, key=lambda s: s.value_gone_ms)
        tombstone = min(known or one, key=lambda s: s.tombstone_gone_ms)
        found.append(
            replace(
                value,
                tombstone_gone_ms=tombstone.tombstone_gone_ms,
                tombstone_round=tombstone.tombstone_round,
            )
        )
    return found


def _round(left: Departures, place: Place) -> str:
    return left.rounds[int(left.round_of[place[0]][place[1]])] if left.rounds else "-"
