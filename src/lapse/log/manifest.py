"""What a log remembers of its own files: `<partition>/.lapse/manifest`.

Segments that must be there, each with its synced bytes, the log's end and its topic id. Without
the manifest a segment that is gone, or cut short, is a hole that cannot be seen. `holes` compares
the manifest with the files found.

One rule makes false alarms impossible, at any crash: *the manifest in force lists only what
cannot go by itself*. So a segment is listed after it was synced, and struck, durably, before its
file goes or changes. What is there and not listed says nothing: it was rolled since, or its removal
was cut short. A manifest that a power cut tore is as good as none. On a full disk all of it goes
where something is to be struck: a new one would need room, which only removals can make.

It counts only while no other owner has changed the directory since (`roster`): each manifest has
the `era` in which it was written.

Under the log's `_files_lock`; while the log is opened, one thread has it all.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, CorruptData, StorageError, lacks_room, unreadable
from lapse.base.fs import Fs
from lapse.base.ids import format_topic_id
from lapse.log.checkpoints import read_topic_id
from lapse.log.summary import FOLDER

MANIFEST = "manifest"
NO_ERA = ""  # no roster of the directory is kept: manifests are neither written nor believed
NOT_CLOSED = -1
_VERSION = 1
_TEMPORARY = ".tmp"

_log = logging.getLogger(__name__)

Long = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of the file.

    Attributes:
        era: of the directory, when it was written.
        topic_id: as Kafka spells it; "" where it is not known.
        sizes: by base offset, how many bytes of the segment's log file were synced.
        end_offset: the log's end, or what it was at the last sync.
        closed_mtime_ns: of the last segment's log file when the log was closed in order; -1 where
            it was not.
    """

    era: str
    topic_id: str = ""
    sizes: Mapping[int, int] = field(default_factory=dict)
    end_offset: int = 0
    closed_mtime_ns: int = NOT_CLOSED


class Versioned(msgspec.Struct):
    """A checked file's content: its version, and the fields of a subclass."""

    version: int


V = TypeVar("V", bound=Versioned)


class _File(Versioned):
    era: str
    topic_id: str
    segments: list[tuple[Long, Long]]
    end_offset: Long
    closed_mtime_ns: int


def manifest_path(partition_dir: Path) -> Path:
    """Where it is kept."""
    return partition_dir / FOLDER / MANIFEST


def read_manifest(partition_dir: Path) -> Manifest | None:
    """The manifest on disk; None where there is none, or not a sound one. Raises StorageError."""
    file = read_checked(manifest_path(partition_dir), _File, _VERSION)
    if file is None:
        return None
    return Manifest(
        file.era, file.topic_id, dict(file.segments), file.end_offset, file.closed_mtime_ns
    )


def read_checked(path: Path, kind: type[V], version: int) -> V | None:
    """The JSON in a file, below its checksum's line; None where there is none, or no sound one.

    Raises StorageError.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise unreadable(e, path) from e
    checksum, _, body = data.partition(b"\n")
    if checksum != b"%08x" % zlib.crc32(body):
        _log.warning("%s: its checksum does not match; going on without it", path)
        return None
    try:
        found = from_json(body, kind)
    except NOT_JSON as e:
        _log.warning("%s: %s; going on without it", path, e)
        return None
    if found.version != version:
        _log.warning("%s: unknown version %d; going on without it", path, found.version)
        return None
    return found


def checked(body: bytes) -> bytes:
    """The bytes of a file for `read_checked`: a checksum's line and the body."""
    return b"%08x\n%b" % (zlib.crc32(body), body)


def topic_id_of(partition_dir: Path) -> str:
    """The topic id in `partition.metadata`; "" where it has none."""
    try:
        found = read_topic_id(partition_dir)
    except CorruptData:
        return ""
    return "" if found is None else format_topic_id(found)


def sync_manifests(fs: Fs, partition_dirs: Iterable[Path]) -> None:
    """Have the manifests there are on the disk. Raises StorageError."""
    there = [path for path in map(manifest_path, partition_dirs) if path.exists()]
    if there:
        fs.sync_all([*there, *(path.parent for path in there)])


class ManifestKeeper:
    """The manifest of one log, kept so that it never says too much.

    Attributes:
        found: what was there when the log was opened, if that counts.
        stale: the same where it does not.
        topic_id: as `partition.metadata` has it; "" where it has none.
    """

    def __init__(self, fs: Fs, partition_dir: Path, era: str) -> None:
        """`era` is the directory's; with `NO_ERA` nothing is kept. Raises StorageError."""
        self._fs, self._dir, self.era = fs, partition_dir, era
        known = read_manifest(partition_dir) if era != NO_ERA else None
        self.topic_id = topic_id_of(partition_dir) if era != NO_ERA else ""
        self._listed: Mapping[int, int] = {} if known is None else known.sizes
        self._end_offset = 0 if known is None else known.end_offset
        # Whether no other file can come to light, which may list more: what was written and not
        # synced may give way to an older one, and what could not be written has left it there.
        self._is_durable = known is None
        self._unsettled: set[int] = set()  # swapped in by renames that are not synced
        self._in_force = known
        counts = known is not None and self._counts(known)
        self.found = known if counts else None
        self.stale = None if counts else known

    def _counts(self, known: Manifest) -> bool:
        if known.era != self.era:
            return False
        if known.topic_id and self.topic_id and known.topic_id != self.topic_id:
            _log.warning(
                "%s is of topic id %s, not %s: going on without it", manifest_path(self._dir),
                known.topic_id, self.topic_id,
            )  # fmt: skip
            return False
        return True

    def listed(self, base_offset: int) -> dict[int, int]:
        """The listed bytes of one segment by its base offset; empty if it is not listed."""
        size = self._listed.get(base_offset)
        return {} if size is None else {base_offset: size}

    def strike(
        self, bases: Collection[int], *, foreseen: bool = False, end_offset: int | None = None
    ) -> None:
        """Segments whose files are about to go or to change. Durable when this returns.

        `foreseen`: the caller has synced what `foresee` left. `end_offset`: where the log is to
        end, if that changes. Raises StorageError.
        """
        self._end_offset = self._end_offset if end_offset is None else end_offset
        is_durable = foreseen or self._is_durable
        if not is_durable or any(base in self._listed for base in bases):
            try:
                self._write(self._without(bases), self._end_offset, sync=True)
            except StorageError as e:
                if not lacks_room(e):
                    raise
                _log.warning("what should be there is not known till there is room: %s", e)
                self.drop()

    def drop(self) -> None:
        """List nothing, which takes no room and gives some back. Durable when this returns.

        The next sync lists anew what is there. Raises StorageError.
        """
        if self.era == NO_ERA:
            return
        path = manifest_path(self._dir)
        self._in_force, self._is_durable, self._listed = None, False, {}
        self._fs.unlink(path.with_name(path.name + _TEMPORARY))
        self._fs.unlink(path)
        if path.parent.is_dir():  # not where there was no room for it either
            self._fs.fsync_dir(path.parent)
        self._is_durable = True

    def foresee(self, bases: Collection[int]) -> None:
        """As `strike`, but the caller syncs `manifest_path` and its folder."""
        if not self._is_durable or any(base in self._listed for base in bases):
            self._write(self._without(bases), self._end_offset, sync=False)

    def _without(self, bases: Collection[int]) -> dict[int, int]:
        gone = set(bases)
        return {base: size for base, size in self._listed.items() if base not in gone}

    def swapped(self, bases: Collection[int], *, durable: bool) -> None:
        """New segments are in place; `durable` where their renames are synced."""
        (self._unsettled.difference_update if durable else self._unsettled.update)(bases)

    def settle(self) -> None:
        """All renames so far are synced."""
        self._unsettled.clear()

    def note(
        self, sizes: Mapping[int, int], end_offset: int, *, closed_mtime_ns: int = NOT_CLOSED,
        sync: bool = True,
    ) -> None:  # fmt: skip
        """List the segments that are there and synced, with the bytes of each.

        Where that cannot be written an older one stays, which lists less of what is new.
        """
        listed = {base: size for base, size in sizes.items() if base not in self._unsettled}
        if self.era == NO_ERA or self._says(listed, closed_mtime_ns):
            return
        try:
            self._write(listed, end_offset, sync=sync, closed_mtime_ns=closed_mtime_ns)
        except StorageError as e:
            _log.warning("what should be there is not noted: %s", e)

    def _says(self, listed: Mapping[int, int], closed_mtime_ns: int) -> bool:
        known = self._in_force
        if known is None:
            return not listed
        return (
            known.era == self.era
            and known.sizes == listed
            and closed_mtime_ns in {NOT_CLOSED, known.closed_mtime_ns}
        )

    def _write(
        self, listed: Mapping[int, int], end_offset: int, *, sync: bool,
        closed_mtime_ns: int = NOT_CLOSED,
    ) -> None:  # fmt: skip
        path = manifest_path(self._dir)
        segments = sorted(listed.items())
        file = _File(_VERSION, self.era, self.topic_id, segments, end_offset, closed_mtime_ns)
        data = checked(msgspec.json.encode(file))
        self._in_force, self._is_durable = None, False  # until it succeeds
        self._listed, self._end_offset = listed, end_offset
        self._fs.make_dir(path.parent)
        if sync:
            self._fs.replace_file(path, data)
            self._is_durable = True
        else:
            temporary = path.with_name(path.name + _TEMPORARY)
            self._fs.write_file(temporary, data)
            self._fs.rename(temporary, path)
        self._in_force = Manifest(
            self.era, self.topic_id, dict(segments), end_offset, closed_mtime_ns
        )
