"""What is known of a log's other replicas: `<partition>/.lapse/replicas` (L3).

The broker keeps what it has learned there, so that a tool that works on the directory alone waits
for the other replicas as it does, and goes by the high watermark. A log with such a file has other
replicas; of a file that is damaged nothing is known, and then nothing may leave.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def others_path(partition_dir: Path) -> Path:
    """Where it is kept."""
    return partition_dir / FOLDER / REPLICAS


def read_others(partition_dir: Path) -> tuple[ReplicaFacts, ...]:
    """The other replicas; none where there is no file. Raises StorageError."""
    path = others_path(partition_dir)
    file = read_checked(path, _File, _VERSION)
    if file is None:
        return NOTHING_KNOWN if path.exists() else ()
    return tuple(
        ReplicaFacts(
            one.broker,
            tuple(CleanedTo(offset, at_ms) for offset, at_ms in one.cleaned),
            one.away_since_ms,
            one.counted,
        )
        for one in file.replicas
    )


def write_others(fs: Fs, partition_dir: Path, replicas: Sequence[ReplicaFacts]) -> None:
    """Keep it, durably."""
    kept = [
        _Replica(
            one.node_id, [(c.offset, c.at_ms) for c in one.cleaned], one.away_since_ms, one.counted
        )
        for one in replicas
    ]
    path = others_path(partition_dir)
    fs.make_dir(path.parent)
    fs.replace_file(path, checked(msgspec.json.encode(_File(_VERSION, kept))))
