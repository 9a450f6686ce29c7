"""A partition's folder on its way to another log directory of the same broker (KIP-113).

A `Copy` brings what there is, piece by piece, while the log is used; what has changed since it was
brought is brought again. `relocate` brings the rest while nobody changes the log, and then:

1. the copy, whole and synced, gets a mark that says so;
2. the old folder is put away, as that of a deleted partition;
3. the copy gets the partition's name.

After a crash `settle` finds the old folder, and the copy counts for nothing; or no folder but a
whole copy, which is then the log. Where a directory is missing nobody knows, and it stays. A copy
goes with its topic (`put_copies_away`), which its `partition.metadata` names; so that is brought
before any record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import Fs, storage_errors
from lapse.base.ids import TopicPartition
from lapse.log.checkpoints import read_topic_id
from lapse.log.directory import LogDirectory
from lapse.log.folders import is_bare, list_copies
from lapse.log.intent import INTENT
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, base_offset_of
from lapse.log.summary import FOLDER

_log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
# What a round or a replaced file has on the way, and what is about to be removed.
_NOT_BROUGHT = (".tmp", ".deleted", ".cleaned", ".swap")
WHOLE = "whole-copy"  # in a copy's `.lapse`: it has all that the log has, and nothing was appended


class _Brought(NamedTuple):
    """How much of a file was brought, and what the file was when the last of that was read.

    What was brought is the file's beginning while the log is of the same `generation`. A later
    generation may have cut the file, or put another one in its place, perhaps with its inode: then
    only a file that is as it was counts, if all of it was read while it was so.

    Attributes:
        state: inode, size, and when the content and the inode changed last (ns).
        is_whole: all of it was brought. is_at_once: and it did not change since the first byte.
    """

    size: int
    state: _State
    is_whole: bool
    is_at_once: bool
    generation: int


class _State(NamedTuple):
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @staticmethod
    def of(found: os.stat_result) -> _State:
        return _State(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Copy:
    """The copy of one open log.

    Attributes:
        folder: where it is.
        size: bytes of records in it.
        may_be_the_log: it is whole, and perhaps the only one there is; so it stays.
    """

    def __init__(self, log: PartitionLog, folder: Path, fs: Fs) -> None:
        self.log, self.folder, self._fs = log, folder, fs
        self._brought: dict[str, _Brought] = {}
        self._unsynced: set[str] = set()
        self._left: deque[str] = deque()  # to be looked at in this pass over all files
        self.may_be_the_log = False

    @property
    def size(self) -> int:
        brought = self._brought.copy()  # another thread may bring some just now
        return sum(one.size for name, one in brought.items() if name.endswith(LOG))

    @property
    def end_offset(self) -> int:
        """Up to where it is known to have everything: the end of whole sealed segments."""
        end = self.log.log_start_offset
        for segment in self.log.segments[:-1]:
            brought = self._brought.get(segment.path().name)
            if brought is None or brought.size != segment.size:
                break
            end = max(end, segment.end_offset)
        return end

    def begin(self) -> None:
        """Make the folder. Raises StorageError."""
        self._fs.make_dir(self.folder)
        self._fs.make_dir(self.folder / FOLDER)

    def bring_some(self, bytes_max: int = PIECE_BYTES) -> int:
        """Bring what is not there yet, some of it; returns how many bytes.

        Fewer than `bytes_max`: all files were looked at. Raises StorageError.
        """
        brought = 0
        if not self._left:
            self._left.extend(self._names())
        while self._left and brought < bytes_max:
            name = self._left[0]
            with contextlib.suppress(FileNotFoundError):  # retention or a round has removed it
                brought += self._bring(name, bytes_max - brought)
                if name in self._brought and not self._brought[name].is_whole:
                    continue
            self._left.popleft()
        return brought

    def is_ready(self) -> bool:
        """Whether only what has come since must be brought."""
        return all(self._is_as_far(name) for name in self._names() if name in self._brought)

    def sync(self) -> None:
        """Have what was brought on the disk. Raises StorageError."""
        folders = [self.folder / FOLDER, self.folder, self.folder.parent]
        self._fs.sync_all([*(self.folder / name for name in sorted(self._unsynced)), *folders])
        self._unsynced.clear()

    def finish(self) -> None:
        """Bring all, of a log that nobody changes meanwhile, and remove what is not its. Durable.

        Raises StorageError, also where a round's commit has not ended.
        """
        names = self._names()
        if f"{FOLDER}/{INTENT}" in names:
            raise StorageError(f"{self.log.partition}: a round's commit has not ended")
        # Closing has written these anew, perhaps within one tick of what tells files apart.
        active = self.log.segments[-1].base_offset
        for name in [name for name in self._brought if _is_written_anew(name, active)]:
            del self._brought[name]
        with storage_errors(self.log.dir, "copying"):
            for name in names:
                while self._bring(name, PIECE_BYTES) >= PIECE_BYTES:
                    pass
        for name in sorted(set(_names_in(self.folder)) - set(names)):
            self._fs.unlink(self.folder / name)
            self._brought.pop(name, None)
            self._unsynced.discard(name)
        self.sync()

    def vouch(self) -> None:
        """Say that it is whole; durable when this returns. Raises StorageError."""
        self.may_be_the_log = True
        self._fs.replace_file(self.folder / FOLDER / WHOLE, b"")

    def remove(self) -> None:
        """Give up. Raises StorageError."""
        if not self.may_be_the_log and self.folder.exists():
            self._fs.remove_tree(self.folder)

    def _names(self) -> list[str]:
        return _names_in(self.log.dir)

    def _bring(self, name: str, bytes_max: int) -> int:
        """A file, or a piece of one that only grows; returns how many bytes."""
        target, source = self.folder / name, f"{self.log.dir}/{name}"
        generation, state = self.log.generation, _State.of(os.stat(source))
        before = self._known(name, state)
        if before is not None and before.is_whole and before.state == state:
            return 0  # nearly all of them, while others wait
        with open(source, "rb") as file:
            now = os.fstat(file.fileno())
            state = _State.of(now)
            before = self._known(name, state)
            grows = name.endswith(LOG)
            start = 0
            if before is not None and grows and before.state.inode == state.inode:
                start = before.size
            if start == 0 or start > now.st_size:
                self._fs.unlink(target)
                start = 0
            length = now.st_size - start
            if grows:
                length = min(length, max(bytes_max, 1))
            try:
                with contextlib.closing(self._fs.open_append(target)) as out:
                    out.copy_from(file.fileno(), start, length)
            except StorageError:
                if os.fstat(file.fileno()).st_size >= now.st_size:
                    raise
                self._brought.pop(name, None)  # it was cut just now: the next pass brings it
                return 0
        self._fs.set_mtime_ns(target, now.st_mtime_ns)
        is_same = before is not None and before.state == state and before.is_at_once
        self._brought[name] = _Brought(
            start + length, state, start + length == now.st_size, start == 0 or is_same, generation
        )
        self._unsynced.add(name)
        return length

    def _is_as_far(self, name: str) -> bool:
        try:
            now = _State.of(os.stat(f"{self.log.dir}/{name}"))
        except FileNotFoundError:  # removed since it was listed
            return True
        return self._known(name, now) is not None

    def _known(self, name: str, now: _State) -> _Brought | None:
        """What was brought of a file that is `now`, unless that may not be its beginning."""
        before = self._brought.get(name)
        if before is None or before.generation == self.log.generation:
            return before
        if before.state == now and before.is_at_once:
            return before
        del self._brought[name]
        return None


def _is_written_anew(name: str, active: int) -> bool:
    base_offset = base_offset_of(name.rpartition("/")[2])
    return not name.endswith(LOG) and (base_offset is None or base_offset >= active)


def _names_in(folder: Path) -> list[str]:
    """The files of a partition, relative to its folder; a round's attempts are not among them."""
    with storage_errors(folder, "listing"):
        own = [entry.name for entry in os.scandir(folder) if entry.is_file()]
        ours = folder / FOLDER
        if ours.is_dir():
            own += [f"{FOLDER}/{entry.name}" for entry in os.scandir(ours) if entry.is_file()]
    kept = (name for name in own if not name.endswith((*_NOT_BROUGHT, f"/{WHOLE}")))

    def order(name: str) -> tuple[bool, int, str]:  # whose records they are comes before them
        base_offset = base_offset_of(name.rpartition("/")[2])
        return base_offset is not None, base_offset or 0, name

    return sorted(kept, key=order)


def relocate(
    copy: Copy,
    source: LogDirectory,
    target: LogDirectory,
    fs: Fs,
    goes_on: Callable[[], bool] = lambda: True,
) -> bool:
    """Have the log go on in the other directory; who appends waits for the rest of the copy.

    `goes_on` is asked last, when no commit is under way: that may have been waited for long, and
    after it nothing holds the move back. What it raises is raised.

    False: nothing has changed. It is not to go on there, is there already, or was cut meanwhile,
    and much must be brought again. Raises StorageError, KafkaError: it goes on where it was then,
    or is offline.
    """
    log = copy.log
    partition, place = log.partition, target.path / str(log.partition)

    def bring() -> None:
        copy.finish()
        target.take_in(log)
        copy.vouch()
        source.let_go(partition, log.config.file_delete_delay_ms)
        fs.rename(copy.folder, place)
        fs.fsync_dir(target.path)

    with log.committing:
        if log.dir == place:  # that directory would take it in, and then let it go
            return False
        if not copy.is_ready() or not goes_on():
            return False
        try:
            log.go_on_in(place, target.era, bring)
        except BaseException:
            if source.holds(partition):  # it goes on there
                copy.may_be_the_log = False
                source.keep(log)
                target.give_back(partition)
            raise
    fs.unlink(place / FOLDER / WHOLE)
    target.checkpoint()
    return True


def settle(
    directories: Sequence[LogDirectory], fs: Fs, *, all_there: bool
) -> list[tuple[TopicPartition, LogDirectory]]:
    """Put in order what was on its way when the broker stopped; returns what is to begin anew.

    `all_there`: no directory is offline.
    """
    again = []
    for directory in directories:
        try:
            for path, partition in list_copies(directory.path):
                if _settled(path, partition, directories, fs, all_there=all_there):
                    again.append((partition, directory))
        except StorageError as e:  # of one disk, which stops no other
            _log.warning("copies in %s are left alone: %s", directory.path, e)
    return again


def _settled(
    path: Path,
    partition: TopicPartition,
    directories: Sequence[LogDirectory],
    fs: Fs,
    *,
    all_there: bool,
) -> bool:
    """Whether it is gone, and is to begin anew."""
    held = [one.path / str(partition) for one in directories if one.holds(partition)]
    place, topic_id = path.parent / str(partition), _topic_id_of(path)
    full = [folder for folder in held if not is_bare(folder)]
    of_others = [folder for folder in full if topic_id not in {None, _topic_id_of(folder)}]
    if len(of_others) < len(full):
        fs.remove_tree(path)
        return True
    if of_others and not _is_whole(path):
        _log.info("%s: the topic that this is a copy of was deleted; removed", path)
        fs.remove_tree(path)
    elif all_there and not held and _is_whole(path):
        fs.rename(path, place)
        fs.fsync_dir(path.parent)
        fs.unlink(place / FOLDER / WHOLE)
        _log.info("%s has moved to %s", partition, path.parent)
    else:
        _log.warning("%s: no log directory has %s; left alone", path, partition)
    return False


def _is_whole(path: Path) -> bool:
    return (path / FOLDER / WHOLE).exists()


def _topic_id_of(folder: Path) -> uuid.UUID | None:
    """None where it is not known."""
    try:
        return read_topic_id(folder)
    except CorruptData:
        return None


def put_copies_away(
    directory: LogDirectory, partition: TopicPartition, topic_id: uuid.UUID, delay_ms: int
) -> None:
    """Have the copies of a topic's partition go with it; nobody has one go on as the log meanwhile.

    Raises StorageError.
    """
    for path, copied in list_copies(directory.path):
        if copied == partition and _topic_id_of(path) == topic_id:
            directory.doom(path, partition, delay_ms)


def drop_strange_copies(directory: LogDirectory, topic_ids: Collection[uuid.UUID], fs: Fs) -> None:
    """Remove what was begun of copies of topics that are there no more. Raises StorageError.

    A whole one stays, which may be all there is; and what does not say of which topic it is, if
    any record is in it.
    """
    for path, _ in list_copies(directory.path):
        topic_id = _topic_id_of(path)
        if not _is_whole(path) and (
            is_bare(path) if topic_id is None else topic_id not in topic_ids
        ):
            _log.info("%s: the topic that this is a copy of was deleted; removed", path)
            fs.remove_tree(path)
