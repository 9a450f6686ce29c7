"""What is known of a log's other replicas: `<partition>/.lapse/replicas` (L3).

The broker keeps what it has learned there: how far those are cleaned that count, and who may have
files of the partition beside those (a replica that has left the count, one that has moved away). So
a tool that works on the directory alone waits for the other replicas as the broker does, goes by
the high watermark, and knows who else may have what it does not see. A log with such a file has
other replicas; of a file that is damaged nothing is known, and then nothing may leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lapse.base.fs import Fs
from lapse.log.facts import CleanedTo, ReplicaFacts
from lapse.log.manifest import Long, Versioned, checked, read_checked
from lapse.log.summary import FOLDER

REPLICAS = "replicas"
_VERSION = 1
NOTHING_KNOWN = (ReplicaFacts(-1, (), 0, counted=False),)


class _Replica(msgspec.Struct, rename={"away_since_ms": "last_seen_ms"}):
    broker: int
    cleaned: list[tuple[Long, Long]]
    away_since_ms: Long
    counted: bool


class _File(Versioned):
    replicas: list[_Replica]
    elsewhere: tuple[int, ...] = ()


def others_path(partition_dir: Path) -> Path:
    """Where it is kept."""
    return partition_dir / FOLDER / REPLICAS


@dataclass(frozen=True, slots=True)
class Others:
    """Where else a partition is.

    Attributes:
        replicas: those that tombstones wait for.
        elsewhere: brokers that are not waited for, and may have files of it nevertheless.
    """

    replicas: tuple[ReplicaFacts, ...] = ()
    elsewhere: tuple[int, ...] = ()


def read_others(partition_dir: Path) -> Others:
    """Nobody where there is no file, or an empty one. Raises StorageError."""
    path = others_path(partition_dir)
    file = read_checked(path, _File, _VERSION)
    if file is None:
        return Others(NOTHING_KNOWN if path.exists() else ())
    replicas = tuple(
        ReplicaFacts(
            one.broker,
            tuple(CleanedTo(offset, at_ms) for offset, at_ms in one.cleaned),
            one.away_since_ms,
            one.counted,
        )
        for one in file.replicas
    )
    return Others(replicas, file.elsewhere)


def write_others(fs: Fs, partition_dir: Path, others: Others) -> None:
    """Keep it, durably."""
    kept = [
        _Replica(
            one.node_id, [(c.offset, c.at_ms) for c in one.cleaned], one.away_since_ms, one.counted
        )
        for one in others.replicas
    ]
    path = others_path(partition_dir)
    fs.make_dir(path.parent)
    file = _File(_VERSION, kept, others.elsewhere)
    fs.replace_file(path, checked(msgspec.json.encode(file)))
