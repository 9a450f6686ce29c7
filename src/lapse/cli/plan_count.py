"""What a round would do to a log, by doing it all but for the writing: `lapse plan --count`.

The one place where tools run a round's stages without an owner. What the rewrite would write is
counted and thrown away; messages of old formats, which a round upgrades to files of its own first,
go to a temporary directory. The log's own directory is only read.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.lifecycle.decide.select import Decision
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.offset_map import Tick, build_map
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.lifecycle.round.rewrite import rewrite
from lapse.lifecycle.round.source import Workplace


@dataclass(frozen=True, slots=True)
class Counted:
    """A round as it would go.

    Attributes:
        removed: records, by reason.
        stamped: batches that would get a delete horizon.
        bytes_read: of log files, both passes; bytes_written of the new ones.
        segments_before, segments_after: of those that would be rewritten.
        first_dirty_after: None after a trim.
    """

    removed: dict[str, int]
    stamped: int
    map_entries: int
    bytes_read: int
    bytes_written: int
    segments_before: int
    segments_after: int
    first_dirty_after: int | None


def plan_of(decision: Decision, memory: MapMemory) -> RoundPlan:
    """The plan of a round that is due."""
    return make_plan(decision, "counted", Rules.LAPSE, memory)


def count(plan: RoundPlan, tick: Tick) -> Counted:
    """Run map and rewrite. Raises CorruptData, StorageError."""
    fs = RealFs()
    folder = Path(tempfile.gettempdir()) / f"lapse-plan-{secrets.token_hex(12)}"
    fs.make_dir(folder)
    try:
        mapped = build_map(plan, tick, Workplace(fs, folder))
        try:
            done = rewrite(plan, mapped, _Nowhere(), folder, tick)
        finally:
            for segment in mapped.segments:
                segment.close()
    finally:
        fs.remove_tree(folder)
    removed: Counter[str] = Counter()
    for group in done.groups:
        removed.update(group.removed)
    trim = mapped.latest < 0
    return Counted(
        removed={reason: n for reason, n in sorted(removed.items()) if n},
        stamped=sum(group.stamped for group in done.groups),
        map_entries=mapped.entries,
        bytes_read=done.bytes_read + (0 if trim else plan.bytes_to_read),
        bytes_written=done.bytes_written,
        segments_before=sum(len(group.old_bases) for group in done.groups),
        segments_after=len(done.groups),
        first_dirty_after=None if trim else mapped.end_offset,
    )


class _Thrown:
    """A file whose bytes go nowhere."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def fileno(self) -> int:
        return -1

    def reserve(self, size: int) -> None: ...

    def write(self, *buffers: Buffer) -> None:
        self.size += sum(memoryview(buffer).nbytes for buffer in buffers)

    def copy_from(self, source_fd: int, position: int, length: int) -> None:  # noqa: ARG002
        self.size += length

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class _Nowhere(RealFs):
    """A file system that takes an attempt's files and keeps nothing."""

    def open_append(self, path: Path) -> AppendFile:
        return _Thrown(path)

    def write_file(self, path: Path, data: Buffer) -> None: ...

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None: ...

    def sync_all(self, paths: Sequence[Path]) -> None: ...
