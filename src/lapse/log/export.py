"""Copies of logs: as they are, and so that a real Kafka may have them (`lapse convert --to-kafka`).

Two things in ours are not Kafka's. Tombstones with values (KIP-87) would come to life there, since
Kafka goes by the null value alone: where the topic compacts they lose their value. And `.lapse`
would lie around. All else is the same already; a segment without such tombstones is copied byte for
byte, side files too.

The source is only read. What is written is durable when `export_logs` or `copy_logs` returns, and
until then nothing of ours opens the target, nor does Kafka find what it knows a directory by.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lapse.base.config import topic_config
from lapse.base.errors import ConfigError, CorruptData, StorageError
from lapse.base.fs import AppendFile, Fs, make_lasting_dir, storage_errors
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import RECORD_TOMBSTONE
from lapse.log import checkpoints
from lapse.log.folders import list_partitions
from lapse.log.headers import read_batch, walk
from lapse.log.incomplete import INCOMPLETE, TO_KAFKA, TO_V2, Begun, begun_copy
from lapse.log.intent import INTENT
from lapse.log.lock import LOCK, lock_file
from lapse.log.reserve import RESERVE
from lapse.log.roster import ROSTER
from lapse.log.scanned import scan_segment
from lapse.log.segment import INDEX, LOG, TIME_INDEX, base_offset_of, segment_path
from lapse.log.start import read_start
from lapse.log.summary import FOLDER
from lapse.log.swap import CLEANED, DELETED, SWAP
from lapse.records.batch import decode_rows
from lapse.records.tombstone import valued_rows, without_values

_KAFKA_FILES = [
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.CLEANER,
    checkpoints.HIGH_WATERMARK,
    "bootstrap.checkpoint",
]


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of exporting a partition.

    Attributes:
        tombstones_nulled: records that lost their value.
    """

    segments: int
    segments_rewritten: int
    tombstones_nulled: int
    bytes_written: int


def export_partition(
    source: Path, target: Path, fs: Fs, index_interval_bytes: int, flags_count: bool = True
) -> Exported:
    """Copy the log in `source` to `target`; raises CorruptData where a flagged batch is.

    Unless `flags_count`, flagged values are plain data and stay: nothing compacts there. Raises
    StorageError where a round's commit was cut short: Kafka would put its files in place as they
    are, flagged values and all. What only waits to be unlinked is left out.
    """
    there = sorted(entry.name for entry in os.scandir(source) if entry.is_file())
    names = [name for name in there if not name.endswith(DELETED)]
    on_the_way = [name for name in names if name.endswith((SWAP, CLEANED))]
    if on_the_way or (source / FOLDER / INTENT).exists():
        what = on_the_way[0] if on_the_way else INTENT
        raise StorageError(
            f"{source}: a round's commit was cut short ({what}); start Lapse there once, stop it"
        )
    fs.make_dir(target)
    logs = {
        name: base_offset
        for name in names
        if name.endswith(LOG) and (base_offset := base_offset_of(name)) is not None
    }
    nulled, rewritten, size = 0, set(), 0
    for name, base_offset in logs.items():
        if flags_count and _is_flagged(source / name):
            nulled += _without_values(source / name, target / name, fs)
            rewritten.add(base_offset)
            _make_indexes(target, base_offset, fs, index_interval_bytes)
    for name in names:
        made_anew = base_offset_of(name) in rewritten and name.endswith((LOG, INDEX, TIME_INDEX))
        if not made_anew:
            copy_file(source / name, target / name, fs)
        if name in logs:
            size += (target / name).stat().st_size
    fs.sync_all([target / name for name in names])
    fs.fsync_dir(target)
    return Exported(len(logs), len(rewritten), nulled, size)


def export_directory_files(source: Path, target: Path, names: list[str], fs: Fs) -> None:
    """Export Kafka's files beside the partitions, those that exist; call it after the partitions.

    The log starts among them are the ones in force: Kafka's file may lag behind what the logs
    themselves keep, and deleted records must not come back there (L11).
    """
    present = [name for name in names if (source / name).is_file()]
    for name in present:
        copy_file(source / name, target / name, fs)
    fs.sync_all([target / name for name in present])
    fs.fsync_dir(target)
    if checkpoints.LOG_START in names:
        _bring_log_starts_up_to_date(source, target, fs)


def _bring_log_starts_up_to_date(source: Path, target: Path, fs: Fs) -> None:
    path = target / checkpoints.LOG_START
    try:
        known = checkpoints.read_offsets(path)
    except CorruptData:
        known = {}  # as when a log directory is opened
    own = {tp: read_start(source / str(tp)).offset for tp in list_partitions(target)}
    ahead = {tp: offset for tp, offset in own.items() if offset > known.get(tp, 0)}
    if ahead:
        checkpoints.write_offsets(fs, path, {**known, **ahead})


def export_logs(
    source: Path, target: Path, counted: Mapping[TopicPartition, bool], fs: Fs,
    index_interval_bytes: int, metadata_folder: str | None = None,
) -> dict[TopicPartition, Exported | CorruptData]:  # fmt: skip
    """Some logs of a log directory and the files Kafka has beside them, to a new one; all durable.

    `counted`: the partitions, and whether flags count there. One with a flagged batch that does
    not read is not in the target, and what was wrong is returned; then the target gets no
    clean-shutdown marker. `metadata_folder`: of Kafka's metadata log, if that is to be copied too.
    Raises what `copy_logs` does.
    """
    done: dict[TopicPartition, Exported | CorruptData] = {}
    with _until_whole(source, target, TO_KAFKA, fs):
        for partition, flags_count in counted.items():
            folder = target / str(partition)
            try:
                done[partition] = export_partition(
                    source / str(partition), folder, fs, index_interval_bytes, flags_count
                )
            except CorruptData as e:
                fs.remove_tree(folder)
                done[partition] = e
        if metadata_folder is not None:
            # Kafka makes its metadata log with the default, not with topics' settings.
            default_bytes = topic_config({}).index_interval_bytes
            export_partition(source / metadata_folder, target / metadata_folder, fs, default_bytes)
        export_directory_files(source, target, _KAFKA_FILES, fs)
        last = [
            checkpoints.META_PROPERTIES
        ]  # without it Kafka does not take the directory for one of Kafka's
        if not any(isinstance(one, CorruptData) for one in done.values()):
            last.append(checkpoints.CLEAN_SHUTDOWN)
        export_directory_files(source, target, last, fs)
    return done


# What a copy that was just begun may have beside INCOMPLETE, or before it.
_BEGUN = frozenset({LOCK, INCOMPLETE, INCOMPLETE + ".tmp"})
# A copy begins a new era, and needs its room for itself.
_NOT_COPIED = _BEGUN | {checkpoints.CLEAN_SHUTDOWN, ROSTER, RESERVE}


def require_free(source: Path, target: Path, how: str) -> None:
    """Raise ConfigError unless logs may be copied to `target`, and empty it for that."""
    here, ours = target.resolve(), source.resolve()
    if here.is_relative_to(ours) or ours.is_relative_to(here):
        raise ConfigError(f"--to {target}: allowed is a directory outside {source}")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"--to {target}: is no directory")
    there = {entry.name for entry in os.scandir(target)} if target.exists() else set()
    begun = begun_copy(target) if INCOMPLETE in there else None
    if begun != Begun(str(ours), how) and not (begun is None and there <= _BEGUN):
        allowed = f"a new or empty directory, or an incomplete copy of {source} by {how!r}"
        raise ConfigError(f"--to {target}: allowed is {allowed}")


def copy_logs(
    source: Path, target: Path, partitions: Iterable[TopicPartition], fs: Fs, how: str = TO_V2
) -> None:
    """Some logs of a log directory and the directory's own files, to a new one; all durable.

    The source's clean-shutdown marker speaks of whole files, so the copy gets one last of all.
    Raises ConfigError where the target is not free, and LockHeld where it is in use.
    """
    with _until_whole(source, target, how, fs):
        fs.sync_all(_copy_all(source, target, partitions, fs))
        epoch = checkpoints.read_clean_shutdown(source)
        if epoch is not None:
            checkpoints.write_clean_shutdown(fs, target, epoch)


@contextlib.contextmanager
def _until_whole(source: Path, target: Path, how: str, fs: Fs) -> Iterator[None]:
    """The target, locked and empty, says that it is incomplete until the block is done.

    So Lapse does not open it, and another copy of the same source to it starts from the beginning.
    """
    require_free(source, target, how)
    make_lasting_dir(fs, target)
    with contextlib.closing(lock_file(target / LOCK, fs)):
        require_free(source, target, how)  # the process that had it locked may have finished it
        fs.replace_file(target / INCOMPLETE, Begun(str(source.resolve()), how).encode())
        _empty(target, fs)
        yield
        fs.unlink(target / INCOMPLETE)
        fs.fsync_dir(target)


def _empty(target: Path, fs: Fs) -> None:
    """Remove what a copy that was begun has: which of it is whole, a crash leaves open."""
    for entry in list(os.scandir(target)):
        if entry.is_dir(follow_symlinks=False):
            fs.remove_tree(Path(entry.path))
        elif entry.name not in {LOCK, INCOMPLETE}:
            fs.unlink(Path(entry.path))


def _copy_all(
    source: Path, target: Path, partitions: Iterable[TopicPartition], fs: Fs
) -> list[Path]:
    """Returns the files and folders to be synced; what Kafka knows a directory by comes last."""
    copies = [
        path
        for partition in partitions
        for path in sorted((source / str(partition)).rglob("*"))
        if path.is_file()
    ]
    own = [path for path in source.iterdir() if path.is_file() and path.name not in _NOT_COPIED]
    copies += sorted(own, key=lambda path: (path.name == checkpoints.META_PROPERTIES, path.name))
    written = {target: None}  # in order, each once
    for path in copies:
        copy = target / path.relative_to(source)
        for folder in reversed(copy.relative_to(target).parents[:-1]):
            if target / folder not in written:
                fs.make_dir(target / folder)
                written[target / folder] = None
        copy_file(path, copy, fs)
        written[copy] = None
    return list(written)


def copy_file(source: Path, target: Path, fs: Fs) -> None:
    """Byte for byte, with its modification time."""
    with storage_errors(source, "copying"), source.open("rb") as f:
        stat = os.fstat(f.fileno())
        with contextlib.closing(fs.open_append(target)) as file:
            file.copy_from(f.fileno(), 0, stat.st_size)
    fs.set_mtime_ns(target, stat.st_mtime_ns)


def _is_flagged(path: Path) -> bool:
    """Whether any batch says that it holds tombstones with values."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return any(valued_rows(rows).any() for rows in walk(file.fileno(), 0, size, str(path)))


def _without_values(source: Path, target: Path, fs: Fs) -> int:
    """Write the segment with its flagged values nulled; returns how many there were."""
    nulled = copied = 0
    with contextlib.closing(fs.open_append(target)) as out, source.open("rb") as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        for rows in walk(fd, 0, size, str(source), check_crc=True):
            for row in rows[valued_rows(rows)]:
                position = int(row["position"])
                _copy(out, fd, copied, position)
                data, here = read_batch(fd, row)
                _, records = decode_rows(data, here, str(source))
                nulled += int((records["attributes"] & RECORD_TOMBSTONE != 0).sum())
                out.write(without_values(data, here, str(source)))
                copied = position + len(data)
        _copy(out, fd, copied, size)
        mtime_ns = os.fstat(fd).st_mtime_ns
    fs.set_mtime_ns(target, mtime_ns)
    return nulled


def _copy(out: AppendFile, fd: int, start: int, end: int) -> None:
    if end > start:
        out.copy_from(fd, start, end - start)


def _make_indexes(partition_dir: Path, base_offset: int, fs: Fs, interval_bytes: int) -> None:
    mtime_ns = segment_path(partition_dir, base_offset, LOG).stat().st_mtime_ns
    scanned = scan_segment(partition_dir, base_offset, None, interval_bytes, check_crc=False)
    for index in (scanned.offset_index, scanned.time_index):
        index.write_out(fs)
        fs.set_mtime_ns(index.path, mtime_ns)
