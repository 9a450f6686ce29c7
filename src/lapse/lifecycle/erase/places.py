"""Which files a replica has of a topic, and which of them cannot hold a key because of their kind.

A replica is a log directory. What counts of it: every partition of the topic, including those that
are being deleted or are not in use yet (`-delete`, `-future`, `-stray`), with everything below
them, and the files beside the partitions. Every file is searched unless it is known to hold no key.
Of a table, which an export has written, everything below its folder counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.lifecycle import clock_guard
from lapse.lifecycle.round.ledger import LEDGER_FILE
from lapse.lifecycle.round.ledger import read as read_ledger
from lapse.lifecycle.status import reports
from lapse.log import checkpoints
from lapse.log.append_times import SUFFIX as APPENDED
from lapse.log.append_times import is_append_times
from lapse.log.manifest import MANIFEST, read_manifest
from lapse.log.others import NOTHING_KNOWN, REPLICAS, Others, read_others
from lapse.log.reserve import is_reserve
from lapse.log.roster import ROSTER
from lapse.log.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, base_offset_of
from lapse.log.start import LOG_START, KeptStart, read_start
from lapse.log.summary import FOLDER, read_summary
from lapse.log.summary import SUFFIX as SUMMARY
from lapse.log.swap import CLEANED, DELETED, SWAP

FUTURE = "-future"  # ends the name of a copy that is made to take a partition's place
_NAME_BYTES_MAX = 255
_LEAVING = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]{1,10})\.[^.]+-(?:delete|future|stray)")

# Kafka's suffixes of files that hold offsets, positions, times and producer ids, and no record.
_INDEXES = (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
_ATTEMPT_INDEXES = ("-offsets", "-times", "-aborted", "-removed")
_ATTEMPT_BATCHES = ("-records", "-image")
_CUT_OFF = re.compile(r"cut-[0-9]{20}-[0-9]+(?:\.[0-9]+)?")  # `log.aside`
_ON_THEIR_WAY = (CLEANED, SWAP, DELETED)
_BESIDE = frozenset(
    {
        checkpoints.RECOVERY_POINT,
        checkpoints.LOG_START,
        checkpoints.CLEANER,
        checkpoints.HIGH_WATERMARK,
        checkpoints.META_PROPERTIES,
        ".lock",
        ".kafka_cleanshutdown",
        "lapse-metadata.sqlite",
        reports.ROUNDS,
        reports.ROUNDS_BEFORE,
        reports.PROGRESS,
        reports.QUEUE,
        *clock_guard.KEEPERS,
        ROSTER,
        clock_guard.CONFIRMED,
    }
)
_IN_PARTITION = frozenset({checkpoints.LEADER_EPOCHS, "partition.metadata"})


@dataclass(frozen=True, slots=True, order=True)
class FileState:
    """Identifies a file and its state, to detect whether it changed since it was searched."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @staticmethod
    def of(result: os.stat_result) -> FileState:
        return FileState(
            result.st_dev, result.st_ino, result.st_size, result.st_mtime_ns, result.st_ctime_ns
        )


@dataclass(frozen=True, slots=True)
class ReplicaFile:
    """A file of a replica.

    Attributes:
        path: relative to the replica's directory.
        folder: the partition's directory; empty for a file beside the partitions.
        state: None if `stat` fails; `problem` says why.
    """

    path: str
    folder: str
    state: FileState | None
    problem: str | None = None


UNKNOWN_BROKER = NOTHING_KNOWN[0].node_id


@dataclass(frozen=True, slots=True)
class Home:
    """A partition's directory by its inode, no matter which path leads to it (link, other mount).

    Attributes:
        topic_id: from its `partition.metadata`, as Kafka spells it; None if it is not there.
        others: brokers that have the partition too, as this one knows; UNKNOWN_BROKER where what
            it knows cannot be read.
        elsewhere: brokers that may have files of it, and are waited for by nobody.
    """

    folder: str
    device: int
    inode: int
    topic_id: str | None = None
    others: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """What a replica has at a moment.

    Attributes:
        problem: why it could not be listed; then nothing else counts.
        partitions: directories of the topic; homes: their identities, without those of partitions
            that are being deleted or are not in use yet.
        is_log_directory: it looks like one, whether or not it has the topic.
        node_id, cluster_id: from its meta.properties; None if they are not there.
    """

    partitions: tuple[str, ...] = ()
    places: tuple[ReplicaFile, ...] = ()
    is_log_directory: bool = False
    problem: str | None = None
    homes: tuple[Home, ...] = ()
    node_id: int | None = None
    cluster_id: str | None = None


def list_replica(replica: Path, topic: str, partition: int | None) -> Listing:
    """All files that count. A folder that cannot be read is a place with a problem."""
    try:
        entries = sorted(os.scandir(replica), key=lambda entry: entry.name)
    except OSError as e:
        return Listing(problem=f"cannot be listed: {e.strerror or e}")
    partitions: list[str] = []
    places: list[ReplicaFile] = []
    homes: list[Home] = []
    known = False
    for entry in entries:
        if _is_dir(entry):
            known |= TopicPartition.parse(entry.name) is not None
            if belongs(entry.name, topic, partition):
                partitions.append(entry.name)
                if TopicPartition.parse(entry.name) is not None:
                    homes += _home(replica, entry.name)
                places += _below(replica, entry.name, entry.name)
        else:
            known |= entry.name in _BESIDE
            places += _file(replica, entry.name, "")
    node_id, cluster_id = _owner(replica)
    return Listing(
        tuple(partitions), tuple(places), known or bool(partitions),
        homes=tuple(homes), node_id=node_id, cluster_id=cluster_id,
    )  # fmt: skip


def _home(replica: Path, folder: str) -> Iterator[Home]:
    """The directory's identity; yields nothing if it went away or `stat` fails."""
    with contextlib.suppress(OSError):
        state = (replica / folder).stat()
        others, elsewhere = _others(replica / folder)
        topic_id = _topic_id(replica / folder)
        yield Home(folder, state.st_dev, state.st_ino, topic_id, others, elsewhere)


def _others(partition_dir: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where else the partition is, as a broker of Lapse's keeps it; nobody for other brokers."""
    try:
        found = read_others(partition_dir)
    except (LapseError, OSError):
        found = Others(NOTHING_KNOWN)
    return tuple(one.node_id for one in found.replicas), found.elsewhere


def _topic_id(partition_dir: Path) -> str | None:
    try:
        found = checkpoints.read_topic_id(partition_dir)
    except (LapseError, OSError):
        return None
    return None if found is None else format_topic_id(found)


def _owner(replica: Path) -> tuple[int | None, str | None]:
    """The ids of the node and of the cluster in meta.properties."""
    try:
        meta = checkpoints.read_meta(replica)
    except (LapseError, OSError):
        return None, None
    node_id = meta.get("node.id", meta.get("broker.id", ""))  # version 0 said broker.id
    return int(node_id) if node_id.isdecimal() else None, meta.get("cluster.id")


def list_folder(folder: Path) -> Listing:
    """Everything below a folder that is not a log directory: Spark's local directory."""
    if not folder.is_dir():
        return Listing(problem="cannot be listed: no such directory")
    return Listing(places=tuple(_below(folder, "", "")))


def belongs(name: str, topic: str, partition: int | None) -> bool:
    """Whether a directory is a partition of the topic, also one being deleted or not in use yet."""
    found = TopicPartition.parse(name)
    if found is not None:
        return found.topic == topic and partition in {None, found.partition}
    leaving = _LEAVING.fullmatch(name)
    if leaving is None or partition not in {None, int(leaving["partition"])}:
        return False
    if leaving["topic"] == topic:
        return True
    # Kafka cuts the topic where the name would be too long.
    return len(name) >= _NAME_BYTES_MAX and topic.startswith(leaving["topic"])


def _below(root: Path, relative: str, folder: str) -> Iterator[ReplicaFile]:
    """All files below a folder, links to folders followed."""
    seen: set[tuple[int, int]] = set()
    waiting = [relative]
    while waiting:
        path = waiting.pop()
        try:
            state = (root / path).stat()
            if (state.st_dev, state.st_ino) in seen:
                continue
            seen.add((state.st_dev, state.st_ino))
            entries = sorted(os.scandir(root / path), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue  # the next listing shows it
        except OSError as e:
            problem = f"cannot be listed: {e.strerror or e}"
            yield (
                ReplicaFile(path, folder, None, problem)
                if is_text(path)
                else _with_unprintable_name(path, folder)
            )
            continue
        for entry in entries:
            below = f"{path}/{entry.name}" if path else entry.name
            if _is_dir(entry):
                waiting.append(below)
            else:
                yield from _file(root, below, folder)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """False where that cannot be said, of a link that leads to itself, say: `_file` says why."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_text(path: str) -> bool:
    """Whether a report can contain this path: bytes that are not UTF-8 are surrogates in it."""
    return path.isprintable() or not any("\ud800" <= char <= "\udfff" for char in path)


def _with_unprintable_name(path: str, folder: str) -> ReplicaFile:
    """A file whose name no report can contain; it gets a slash at its end, as no other name has."""
    escaped = os.fsencode(path).decode(errors="backslashreplace")
    return ReplicaFile(f"{escaped}/", folder, None, "has a name that is not UTF-8: not read")


def _file(root: Path, path: str, folder: str) -> Iterator[ReplicaFile]:
    if not is_text(path):
        yield _with_unprintable_name(path, folder)
        return
    try:
        state = (root / path).stat()
    except FileNotFoundError:
        if not (root / path).is_symlink():
            return  # it went away: the next listing shows it
        yield ReplicaFile(path, folder, None, "a link to what is not there")
        return
    except OSError as e:
        yield ReplicaFile(path, folder, None, f"cannot be looked at: {e.strerror or e}")
        return
    ordinary = stat.S_ISREG(state.st_mode) or stat.S_ISSOCK(state.st_mode)
    problem = None if ordinary else "no ordinary file: not read"
    yield ReplicaFile(path, folder, FileState.of(state), problem)


# --- files that hold no key -----------------------------------------------------------------------


def why_keyless(replica: Path, place: ReplicaFile) -> str | None:
    """What a file is, if it can hold no key; None if it has to be searched.

    Lapse's own files are read, so that a file which is not what its name says is searched after
    all.
    """
    name = place.path.rpartition("/")[2]
    if (replica / place.path).is_socket():
        return "a socket: nothing is kept in it"
    if not place.folder:
        if is_reserve(replica / place.path):  # a short key may be in it by chance
            return "room that is kept for a start on a full disk"
        known = name.removesuffix(".tmp") in _BESIDE or name.startswith("lapse-metadata.sqlite-")
        return "offsets, settings and times of a whole directory" if known else None
    inside = place.path.removeprefix(f"{place.folder}/")
    if "/" not in inside:
        return _why_kafkas(name)
    if inside.startswith(f"{FOLDER}/"):
        return _why_ours(replica / place.folder, replica / place.path, inside)
    return None


def _why_kafkas(name: str) -> str | None:
    if name in _IN_PARTITION:
        return "the topic's id, or leader epochs"
    base = name
    for suffix in _ON_THEIR_WAY:
        base = base.removesuffix(suffix)
    if base.endswith(_INDEXES) and base_offset_of(base) is not None:
        return "an index: offsets, positions, times and producer ids"
    return None


def _why_ours(partition_dir: Path, path: Path, inside: str) -> str | None:
    name = path.name
    if inside.count("/") == 1:
        for matches, holds, what in _OURS:
            if matches(name):
                try:
                    return what if holds(partition_dir, path) else None
                except (LapseError, OSError):
                    return None
        return None
    digits, dash, _ = name.partition("-")
    if dash and base_offset_of(digits) is not None and name.endswith(_ATTEMPT_INDEXES):
        return "an index of an attempt: offsets, positions and times"
    return None


_Match = Callable[[str], bool]
_Holds = Callable[[Path, Path], bool]
_OURS: tuple[tuple[_Match, _Holds, str], ...] = (
    (
        lambda name: name == LEDGER_FILE,
        lambda partition_dir, _: len(list(read_ledger(partition_dir))) > 0,
        "a ledger: offsets of what was removed",
    ),
    (
        lambda name: name == LOG_START,
        lambda partition_dir, _: read_start(partition_dir) != KeptStart(),
        "offsets at which the log began",
    ),
    (
        lambda name: name == MANIFEST,
        lambda partition_dir, _: read_manifest(partition_dir) is not None,
        "offsets and sizes of segments",
    ),
    (
        lambda name: name.removesuffix(SWAP).endswith(SUMMARY),
        lambda _, path: read_summary(path) is not None,
        "a summary of a segment: counts, offsets and times",
    ),
    (
        lambda name: name == REPLICAS,
        lambda partition_dir, _: read_others(partition_dir).replicas != NOTHING_KNOWN,
        "which brokers have replicas, and how far these are cleaned",
    ),
    (
        lambda name: name.removesuffix(SWAP).endswith(APPENDED),
        lambda _, path: is_append_times(path.read_bytes()),
        "append times of a segment: times and offsets",
    ),
)


def is_segment(path: str) -> bool:
    """Whether a file's name says that it is made of batches, or was, before it was cut off."""
    name = path.rpartition("/")[2]
    _, dot, suffix = name.partition(".")
    if _CUT_OFF.fullmatch(name):
        return True
    if dot:
        return base_offset_of(name) is not None and suffix.split(".")[0] == LOG[1:]
    return _of_attempt(name) is not None


def is_of_the_log(path: str) -> bool:
    """Whether a file is of the log as it is, or what a round is making of that.

    What was cut off the log is not, and what was deleted may not be: at the same offsets the log
    has other records now.
    """
    name = path.rpartition("/")[2]
    return is_segment(path) and not name.endswith(DELETED) and not is_cut_off(path)


def is_cut_off(path: str) -> bool:
    """Whether it is what recovery cut off a log, which is kept for a while."""
    return _CUT_OFF.fullmatch(path.rpartition("/")[2]) is not None


def is_deleted(path: str) -> bool:
    """Whether it is a segment that is being deleted."""
    return is_segment(path) and path.endswith(DELETED)


def is_being_written(path: str) -> bool:
    """Whether it is a file of batches that an attempt writes."""
    return _of_attempt(path.rpartition("/")[2]) is not None


def _of_attempt(name: str) -> int | None:
    """The base offset of the segment that a file of an attempt is made of."""
    found = next((one for one in _ATTEMPT_BATCHES if name.endswith(one)), None)
    return None if found is None else base_offset_of(name.removesuffix(found))
