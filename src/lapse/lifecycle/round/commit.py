"""The commit: the owner puts an attempt's segments in place, so that a crash leaves old or new.

check receipt → fsync → intent → per group, ascending: renames (SEMANTICS W-2), ledger →
checkpoint → intent removed → leftovers swept. Groups go in as a prefix only. A commit is refused
if the log's generation has moved, and one that was done already says so (idempotent by round id).

The intent is the receipt itself. Finding one when a log is opened means that a commit was under
way: `finish_commit` sees which groups are in place and completes the books for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from lapse.base.clock import Clock
from lapse.base.errors import CorruptData, LapseError, StaleGeneration, StorageError
from lapse.base.fs import Fs
from lapse.kernels.crc32c import crc32c_more
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.ledger import LedgerEntry, Removed
from lapse.lifecycle.round.receipt import (
    KAFKA_SUFFIX,
    REMOVED,
    THIS_PROCESS,
    FileReceipt,
    GroupReceipt,
    Receipt,
    attempt_dir,
    attempt_file,
)
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import FOLDER
from lapse.log.swap import INTENT, NewSegment, Replacement

CHECK_BYTES = 256 << 10

SetCheckpoint = Callable[[int], None]  # the next first dirty offset of this log


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of one receipt.

    Attributes:
        groups: new segments put in place.
        committed_ms: when.
        seconds: what it took.
        error: why it was refused or cut short; None if all went in.
    """

    round_id: str
    name: str
    groups: int
    committed_ms: int
    seconds: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CommitEnv:
    """What a commit needs of its surroundings."""

    fs: Fs
    clock: Clock
    set_checkpoint: SetCheckpoint


def intent_path(log_dir: Path) -> Path:
    """Exists while a commit is under way."""
    return log_dir / FOLDER / INTENT


def commit(log: PartitionLog, receipt: Receipt, env: CommitEnv) -> CommitResult:
    """Put a receipt's segments in place; a refusal comes back as the result's error."""
    start = env.clock.monotonic()
    done = 0
    error = receipt.error
    try:
        if error is None:
            done = _commit(log, receipt, env)
    except LapseError as e:
        error = f"{receipt.name}: {e}"
    return CommitResult(
        receipt.round_id,
        receipt.name,
        done,
        env.clock.now_ms(),
        env.clock.monotonic() - start,
        error,
    )


def _commit(log: PartitionLog, receipt: Receipt, env: CommitEnv) -> int:
    finish_commit(log.dir, env)  # one that failed half-way, in this process, has books to close
    booked = _booked(log.dir, receipt)
    groups = [g for g in receipt.groups if g.base_offset not in booked]
    if groups:
        folder = attempt_dir(log.dir, receipt.round_id, receipt.attempt_id)
        _check_files(folder, groups, contents=not receipt.attempt_id.startswith(THIS_PROCESS))
        env.fs.sync_all(
            [folder / attempt_file(g.base_offset, f.kind) for g in groups for f in g.files]
        )
        for directory in (folder, folder.parent, folder.parent.parent):
            env.fs.fsync_dir(directory)
        env.fs.replace_file(intent_path(log.dir), msgspec.json.encode(receipt))
        try:
            _put_in_place(log, receipt, groups, env)
        except (StaleGeneration, CorruptData):  # refused; a StorageError leaves the intent behind
            env.fs.unlink(intent_path(log.dir))
            raise
    env.set_checkpoint(receipt.end_offset)
    env.fs.unlink(intent_path(log.dir))
    sweep(log.dir, receipt.round_id, env.fs)
    return len(groups)


def _put_in_place(
    log: PartitionLog, receipt: Receipt, groups: list[GroupReceipt], env: CommitEnv
) -> None:
    """Swap the groups in, ascending, and book each: always a prefix of the receipt."""
    folder = attempt_dir(log.dir, receipt.round_id, receipt.attempt_id)
    generation = receipt.generation
    for group in groups:
        bytes_before = sum(s.size for s in log.segments if s.base_offset in group.old_bases)
        log.replace_segments(_replacement(folder, group), generation)
        generation = log.generation
        _book(log.dir, receipt, group, bytes_before, env)


def _booked(log_dir: Path, receipt: Receipt) -> set[int]:
    """Groups of this round that the ledger has."""
    heads = ledger.read_heads(log_dir)
    return {head.base_offset for head in heads if head.round_id == receipt.round_id}


def _check_files(folder: Path, groups: list[GroupReceipt], *, contents: bool) -> None:
    """Every file is there and whole and, unless this process wrote it, has the task's bytes."""
    for group in groups:
        for file in group.files:
            path = folder / attempt_file(group.base_offset, file.kind)
            right = (
                _checksum(path) == (file.size, file.crc) if contents else _size(path) == file.size
            )
            if not right:
                raise CorruptData(str(path), 0, "the attempt's file is not what its receipt says")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _checksum(path: Path) -> tuple[int, int]:
    """Size and CRC-32C of a file, read through a buffer that stays in cache; -1 if unreadable."""
    buffer = np.empty(CHECK_BYTES, np.uint8)
    size = crc = 0
    try:
        with path.open("rb", buffering=0) as file:
            while n := file.readinto(buffer.data):
                crc = crc32c_more(crc, buffer, 0, n)
                size += n
    except OSError:
        return -1, -1
    return size, crc


def _replacement(folder: Path, group: GroupReceipt) -> Replacement:
    files = {
        suffix: folder / attempt_file(group.base_offset, kind)
        for kind, suffix in KAFKA_SUFFIX.items()
    }
    new = NewSegment(group.base_offset, files, group.mtime_ns)
    return Replacement((new,), group.old_bases, (group.summary,))


def _book(
    log_dir: Path, receipt: Receipt, group: GroupReceipt, bytes_before: int, env: CommitEnv
) -> None:
    folder = attempt_dir(log_dir, receipt.round_id, receipt.attempt_id)
    path = folder / attempt_file(group.base_offset, REMOVED)
    blobs = _removed(path)
    entry = LedgerEntry(
        round_id=receipt.round_id,
        base_offset=group.base_offset,
        now_ms=receipt.now_ms,
        horizon_ms=receipt.horizon_ms,
        committed_ms=env.clock.now_ms(),
        stamped=group.stamped,
        bytes_before=bytes_before,
        bytes_after=_file(group, "records").size,
        removed=tuple(Removed(*blob) for blob in blobs),
    )
    ledger.append(env.fs, log_dir, entry)


def _removed(path: Path) -> list[tuple[int, str, bytes]]:
    """What a group has lost, as the attempt wrote it."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=list[tuple[int, str, bytes]])
    except OSError as e:
        raise StorageError(f"reading {path}: {e.strerror or e}") from e
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(str(path), 0, str(e)) from e


def _file(group: GroupReceipt, kind: str) -> FileReceipt:
    return next(f for f in group.files if f.kind == kind)


def finish_commit(log_dir: Path, env: CommitEnv) -> str | None:
    """After a crash, once the files are in order (W-5): complete the books of a commit.

    Returns the round's id if there was one under way. Its groups that are in place are booked;
    the checkpoint moves only if all are, so that what is missing is simply cleaned again.
    """
    path = intent_path(log_dir)
    receipt = _read_intent(path)
    if receipt is None:
        env.fs.unlink(path)
        return None
    booked = _booked(log_dir, receipt)
    in_place = [g for g in receipt.groups if _in_place(log_dir, g)]
    for group in in_place:
        if group.base_offset not in booked:
            _book(log_dir, receipt, group, -1, env)
            booked.add(group.base_offset)
    if all(g.base_offset in booked for g in receipt.groups):
        env.set_checkpoint(receipt.end_offset)
    env.fs.unlink(path)
    return receipt.round_id


def _read_intent(path: Path) -> Receipt | None:
    """None where there is none, or one that was not yet whole: nothing was in place then."""
    try:
        receipt = msgspec.json.decode(path.read_bytes(), type=Receipt)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    kinds = {*KAFKA_SUFFIX, REMOVED}
    whole = all(kinds <= {f.kind for f in group.files} for group in receipt.groups)
    return receipt if whole else None


def _in_place(log_dir: Path, group: GroupReceipt) -> bool:
    file = _file(group, "records")
    return _checksum(segment_path(log_dir, group.base_offset, LOG)) == (file.size, file.crc)


def sweep(log_dir: Path, round_id: str, fs: Fs) -> None:
    """Remove a round's attempts."""
    fs.remove_tree(log_dir / FOLDER / round_id)


def waiting_stamps(log_dir: Path, now_ms: int) -> tuple[Stamp, ...]:
    """Committed rounds whose horizons readers have not yet had their full retention for."""
    stamps = (
        Stamp(e.now_ms, e.horizon_ms, e.committed_ms)
        for e in ledger.read_heads(log_dir)
        if e.stamped
    )
    return tuple(s for s in stamps if s.may_pass_ms > now_ms)
