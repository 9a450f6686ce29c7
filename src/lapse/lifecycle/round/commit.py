"""The commit: the log's owner puts an attempt's segments in place; a crash leaves old or new ones.

check receipts → intents → one sync → per log, its groups ascending: renames (W-2) → one
sync → ledgers → one sync → one checkpoint → intents removed → leftovers swept. Many logs of one log
directory go through each stage together, so that ten thousand small logs cost a few syncs and not
tens of thousands; a log that fails leaves the stage, and the other logs go on. The groups of a log
are put in place as a prefix only. A commit is refused if the log's generation has moved; a commit
that was done already is recognised (idempotent by round id).

All data that the round has read is durable before any of it is removed: otherwise a power cut could
lose both a record and the record that it superseded.

A file system need not keep changes in two folders in order. So the renames are durable before the
ledger records them, and both before the checkpoint moves.

The intent is the receipt itself, durable before the first rename. An intent found when a log is
opened means that a commit was under way. Opening the log has then removed the segments that the
intent lists as replaced (`log.swap.recover`); `finish_commit` finds the groups that are in place
(the new segment is there and all old ones are gone) and completes ledger and checkpoint for them.
If an intent is incomplete, it was not yet synced, and nothing was renamed.

A receipt that reports an unreadable place is committed by noting that place (`round.bad`, L10).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from lapse.base.clock import Clock
from lapse.base.decoding import from_json, from_msgpack
from lapse.base.errors import CorruptData, LapseError, StaleGeneration, StorageError, unreadable
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.kernels.crc32c import crc32c_more
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.round import bad, ledger
from lapse.lifecycle.round.ledger import LedgerEntry, Removed
from lapse.lifecycle.round.receipt import (
    APPENDED,
    KAFKA_SUFFIX,
    REMOVED,
    THIS_PROCESS,
    FileReceipt,
    GroupReceipt,
    Receipt,
    attempt_dir,
    attempt_file,
)
from lapse.log.facts import BadRange
from lapse.log.intent import INTENT
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import FOLDER
from lapse.log.swap import NewSegment, Replacement, TakeBreak, no_break, put_in_place

CHECK_BYTES = 256 << 10
_ALWAYS = frozenset({"records", "offsets", "times"})  # files that every group has

SetCheckpoint = Callable[[int], None]  # the next first dirty offset of one log
# The same for many logs; which these are, since another topic may have a partition's name by now.
SetCheckpoints = Callable[[Mapping[TopicPartition, int], Collection[PartitionLog]], None]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of committing one receipt.

    Attributes:
        groups: new segments put in place; a group whose old ones retention removed does not count.
        committed_ms: when the commit ended.
        seconds: time it took; in a commit of many logs, the log's share.
        error: why the commit was refused or cut short; None if all groups are in place.
        bad: the bad range as noted, if the round failed on an unreadable place.
    """

    round_id: str
    name: str
    groups: int
    committed_ms: int
    seconds: float
    error: str | None = None
    bad: BadRange | None = None


@dataclass(frozen=True, slots=True)
class CommitEnv:
    """What the commit of one log needs from its surroundings.

    `latest_ms` is the log's own function if the log is open; otherwise the clock's time is used.
    """

    fs: Fs
    clock: Clock
    set_checkpoint: SetCheckpoint
    latest_ms: Callable[[], int] | None = None

    def committed_ms(self) -> int:
        return self.clock.now_ms() if self.latest_ms is None else self.latest_ms()


@dataclass(frozen=True, slots=True)
class DirectoryEnv:
    """What a commit of many logs of one directory needs: `set_checkpoints` is durable.

    `take_break` is called between logs and between groups: the place to let others go first.
    `closes_after`: the logs are closed once all is committed; what closing does is not done twice.
    """

    fs: Fs
    clock: Clock
    set_checkpoints: SetCheckpoints
    take_break: TakeBreak = no_break
    closes_after: bool = False


@dataclass(slots=True)
class _Commit:
    """One receipt while it is committed.

    Attributes:
        groups: the groups to put in place, set once the commit has begun.
        entries: ledger entries for the groups that are in place.
        generation: the log's expected generation, unless another writer changes its files.
        dirty: at or above this offset the round has read all that it looked at.
        offset: the checkpoint to set once all groups are in place.
        folder: the attempt's folder.
        intent: path of the intent.
        foreseen: the log's manifest, without the segments that are to be replaced.
    """

    log: PartitionLog
    receipt: Receipt
    error: str | None
    groups: list[GroupReceipt] = field(default_factory=list)
    entries: list[LedgerEntry] = field(default_factory=list)
    offset: int | None = None
    bad: BadRange | None = None
    generation: int = field(init=False)
    dirty: int = field(init=False)
    foreseen: Path = field(init=False)
    folder: Path = field(init=False)
    intent: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = attempt_dir(self.log.dir, self.receipt.round_id, self.receipt.attempt_id)
        self.intent = intent_path(self.log.dir)


def intent_path(log_dir: Path) -> Path:
    """Path of the intent, a file that exists while a commit is under way."""
    return log_dir / FOLDER / INTENT


def commit_all(
    receipts: Sequence[tuple[PartitionLog, Receipt]], env: DirectoryEnv
) -> list[CommitResult]:
    """Put the segments of many logs of one directory in place; one result per receipt, in order."""
    start = env.clock.monotonic()
    commits = [_Commit(log, receipt, receipt.error) for log, receipt in receipts]
    for turn in _each_log_once(commits):
        with contextlib.ExitStack() as held:
            for c in sorted(turn, key=lambda c: c.receipt.name):  # as any other commit does
                held.enter_context(c.log.committing)
            _commit_together(turn, env)
    now_ms = env.clock.now_ms()
    seconds = (env.clock.monotonic() - start) / max(len(commits), 1)
    return [
        CommitResult(
            c.receipt.round_id, c.receipt.name, len(c.entries), now_ms, seconds, c.error, c.bad
        )
        for c in commits
    ]


def _each_log_once(commits: Sequence[_Commit]) -> Iterator[list[_Commit]]:
    """The commits in turns with each log at most once: a log has room for one intent only."""
    while commits:
        turn: dict[str, _Commit] = {}
        for c in commits:
            turn.setdefault(c.receipt.name, c)
        yield list(turn.values())
        commits = [c for c in commits if turn[c.receipt.name] is not c]


def _commit_together(commits: list[_Commit], env: DirectoryEnv) -> None:
    for c in commits:
        if c.error is not None:
            _note_bad(c, env)
    live = _each((c for c in commits if c.error is None), lambda c: _begin(c, env), env)
    live = _synced(live, _written, env)
    for c in commits:
        if c.error is not None and c.groups:  # nothing was renamed
            with contextlib.suppress(StorageError):
                env.fs.unlink(c.intent)
    live = _each(live, lambda c: _put_in_place(c, env), env)
    live = _synced(live, lambda c: _renamed(c.log.dir, c.groups), env)
    live = _each(live, lambda c: _book(c, env), env)
    live = _synced(live, lambda c: _booked_files(c.log.dir) if c.entries else [], env)
    live = _each(live, lambda c: _require_unchanged(c, env), env)
    offsets = {c.log.partition: c.offset for c in live if c.offset is not None}
    if offsets:
        live = _all(live, lambda: env.set_checkpoints(offsets, [c.log for c in live]))
    _each(live, lambda c: _end(c, env), env)


def _each(
    commits: Iterable[_Commit], do: Callable[[_Commit], None], env: DirectoryEnv
) -> list[_Commit]:
    """The commits for which `do` succeeds; a failure is stored as the error of its commit."""
    through = []
    for c in commits:
        env.take_break()
        try:
            do(c)
        except (LapseError, OSError) as e:
            c.error = f"{c.receipt.name}: {e}"
        else:
            through.append(c)
    return through


def _all(commits: list[_Commit], do: Callable[[], None]) -> list[_Commit]:
    """All commits if `do` succeeds, otherwise none: all of them get the error."""
    try:
        do()
    except (LapseError, OSError) as e:
        for c in commits:
            c.error = f"{c.receipt.name}: {e}"
        return []
    return commits


def _begin(c: _Commit, env: DirectoryEnv) -> None:
    """All that is done before the first rename, without waiting for the disk."""
    if c.log.offline_reason is not None:  # opening the log settles what is left
        raise StorageError(f"the log is offline: {c.log.offline_reason}")
    if c.log.is_closed:  # its topic was deleted, and there may be another one in its place
        raise StorageError("the log is closed")
    receipt = c.receipt = _with_old_sizes(c.receipt, c.log)
    # Of an earlier commit that failed half-way; the checkpoint is moved below, for this round.
    finish_commit(c.log.dir, CommitEnv(env.fs, env.clock, lambda _: None, c.log.latest_ms))
    if receipt.end_offset >= 0:  # a trim moves no checkpoint
        c.offset = receipt.end_offset
    booked = _booked(c.log.dir, receipt)
    groups = [g for g in receipt.groups if g.base_offset not in booked]
    done_before = bool(booked) and not groups  # then this very round moved the generation
    c.generation = c.log.generation if done_before else receipt.generation
    c.dirty = max(c.log.cleaner_checkpoint or 0, c.log.log_start_offset)
    in_place = not done_before or all(_in_place(c.log.dir, g) for g in receipt.groups)
    if c.generation != c.log.generation or not in_place:
        raise _stale(c)
    if groups:
        contents = not receipt.attempt_id.startswith(THIS_PROCESS)
        for group in groups:
            env.take_break()
            _check_files(c.folder, group, contents=contents)
        if receipt.saw_markers:
            c.log.flush()
        elif c.log.recovery_point < receipt.end_offset:  # seldom: housekeeping syncs what is sealed
            c.log.flush_sealed()  # rounds read nothing else
        c.groups = groups
        env.fs.write_file(c.intent, msgspec.json.encode(receipt))
        c.foreseen = c.log.foresee_swap([base for g in groups for base in g.old_bases])


def _with_old_sizes(receipt: Receipt, log: PartitionLog) -> Receipt:
    sizes = {segment.base_offset: segment.size for segment in log.segments}
    groups = (
        replace(group, old_sizes=tuple(sizes[base] for base in group.old_bases if base in sizes))
        for group in receipt.groups
    )
    return replace(receipt, groups=tuple(groups))


def _written(c: _Commit) -> list[Path]:
    """The paths that must be durable before the first rename."""
    folder = c.folder
    files = [folder / attempt_file(g.base_offset, f.kind) for g in c.groups for f in g.files]
    foreseen = [c.foreseen] if c.foreseen.exists() else []
    return [*files, c.intent, *foreseen, folder, folder.parent, folder.parent.parent]


def _renamed(log_dir: Path, groups: Iterable[GroupReceipt]) -> list[Path]:
    """The paths that must be durable before the ledger may record the groups."""
    return put_in_place(log_dir, [group.base_offset for group in groups])


def _booked_files(log_dir: Path) -> list[Path]:
    """The paths that must be durable before the checkpoint may move."""
    return [ledger.ledger_path(log_dir), log_dir / FOLDER]


def _synced(
    commits: list[_Commit], paths_of: Callable[[_Commit], list[Path]], env: DirectoryEnv
) -> list[_Commit]:
    """One sync for all commits; returns the commits that may go on.

    If the sync fails, the state of the disk is unknown: no commit goes on. The sync is not
    repeated, since the system may report success the second time. Intents that stay are settled by
    the next commit of their log, or when the log is opened.
    """
    changed = [c for c in commits if c.groups]
    rest = [c for c in commits if not c.groups]
    paths = [path for c in changed for path in paths_of(c)]
    return rest + _all(changed, lambda: env.fs.sync_all(paths)) if paths else commits


def _put_in_place(c: _Commit, env: DirectoryEnv) -> None:
    """Swap the groups in, ascending: always a prefix of the receipt, without groups now gone.

    A StorageError leaves the intent behind; `finish_commit` then books the groups in place.
    """
    try:
        for group in c.groups:
            env.take_break()
            entry = _entry(c.log.dir, c.receipt, group, c.log.latest_ms())
            new = _replacement(c.folder, group)
            if c.log.replace_segments(new, c.generation, sync=False, take_break=env.take_break):
                c.generation += 1
                c.entries.append(entry)
            # Otherwise retention has deleted the group's segments, and the ledger has no entry.
    except (StaleGeneration, CorruptData):
        if c.entries:
            env.fs.sync_all(_renamed(c.log.dir, c.groups))
            _book(c, env)
            env.fs.sync_all(_booked_files(c.log.dir))
        env.fs.unlink(c.intent)
        raise


def _book(c: _Commit, env: DirectoryEnv) -> None:
    """Append the groups in place to the ledger; the caller syncs its file."""
    now_ms = c.log.latest_ms()  # consumers get their full retention from then on (L3)
    for entry in c.entries:
        env.take_break()
        ledger.append(env.fs, c.log.dir, replace(entry, committed_ms=now_ms))


def _require_unchanged(c: _Commit, env: DirectoryEnv) -> None:
    """Raise if another writer changed the log's files, so that the round's findings are stale."""
    if c.log.generation != c.generation:
        if c.groups:  # in place and booked; only the checkpoint must not move
            env.fs.unlink(c.intent)
        raise _stale(c)


def _stale(c: _Commit) -> StaleGeneration:
    return StaleGeneration(
        f"its files changed since the plan was made (generation {c.log.generation}, "
        f"round {c.receipt.round_id} has {c.receipt.generation} and {len(c.entries)} new segments)"
    )


def _end(c: _Commit, env: DirectoryEnv) -> None:
    """The commit is complete: update the log, and remove intent and leftovers."""
    receipt, log_dir = c.receipt, c.log.dir
    if receipt.log_start >= 0:
        _require_unchanged(c, env)
        c.log.trimmed_to(receipt.log_start)
    known = c.log.mark().bad
    if known is not None and _got_past(c, known):
        bad.clear(env.fs, log_dir)
        c.log.set_bad(None)
    if c.groups and not env.closes_after:  # closing lists all, too: a file less for a small log
        c.log.note_files()
    env.fs.unlink(c.intent)
    with contextlib.suppress(StorageError):  # another attempt may still write there: swept later
        sweep(log_dir, receipt.round_id, env.fs)


# --- places that cannot be read (L10) ------------------------------------------------------------


def _note_bad(c: _Commit, env: DirectoryEnv) -> None:
    """Note where the round failed, unless it failed on files that are no longer the log's."""
    spot, log = c.receipt.bad, c.log
    if spot is None or log.generation != c.receipt.generation:
        return
    if all(s.base_offset != spot.segment_base for s in log.segments):
        return  # retention took it meanwhile
    # A clock that has jumped meanwhile must not put off the next try for a year.
    now_ms = min(env.clock.now_ms(), c.receipt.now_ms + bad.BACKOFF_MS_MAX)
    c.bad = bad.note_failure(log.facts().bad, spot, now_ms)
    log.set_bad(c.bad)
    try:
        bad.store(env.fs, log.dir, c.bad)
    except StorageError as e:
        c.error = f"{c.error}; not kept: {e}"


def _got_past(c: _Commit, known: BadRange) -> bool:
    """Whether this round has read the log's bad range after all, or replaced its segment.

    The round reads the dirty part in full; below that it reads only to look keys up in the map.
    """
    receipt = c.receipt
    is_clean = receipt.kind == RoundKind.CLEAN.value
    looked = receipt.map_entries > 0 or known.first_offset >= c.dirty
    was_read = is_clean and looked and min(receipt.upper, receipt.end_offset) > known.first_offset
    return was_read or any(known.segment_base in g.old_bases for g in receipt.groups)


# --- files and books -----------------------------------------------------------------------------


def _booked(log_dir: Path, receipt: Receipt) -> set[int]:
    """Groups of this round that the ledger has."""
    heads = ledger.read_heads(log_dir)
    return {head.base_offset for head in heads if head.round_id == receipt.round_id}


def _check_files(folder: Path, group: GroupReceipt, *, contents: bool) -> None:
    """Every file is there and whole and, unless this process wrote it, has the task's bytes."""
    for file in group.files:
        path = folder / attempt_file(group.base_offset, file.kind)
        right = _checksum(path) == (file.size, file.crc) if contents else _size(path) == file.size
        if not right:
            raise CorruptData(str(path), 0, "the attempt's file is not what its receipt says")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _checksum(path: Path) -> tuple[int, int] | None:
    """Size and CRC-32C of a file, read through a buffer that stays in cache; None if unreadable."""
    buffer = np.empty(CHECK_BYTES, np.uint8)
    size = crc = 0
    try:
        with path.open("rb", buffering=0) as file:
            while n := file.readinto(buffer.data):
                crc = crc32c_more(crc, buffer, 0, n)
                size += n
    except OSError:
        return None
    return size, crc


def _replacement(folder: Path, group: GroupReceipt) -> Replacement:
    has = {file.kind for file in group.files}  # a group without aborts has no index of them
    files = {
        suffix: folder / attempt_file(group.base_offset, kind)
        for kind, suffix in KAFKA_SUFFIX.items()
        if kind in has
    }
    times = folder / attempt_file(group.base_offset, APPENDED) if APPENDED in has else None
    new = NewSegment(group.base_offset, files, group.mtime_ns, times)
    return Replacement((new,), group.old_bases, (group.summary,))


def _entry(log_dir: Path, receipt: Receipt, group: GroupReceipt, committed_ms: int) -> LedgerEntry:
    blobs = _removed(attempt_dir(log_dir, receipt.round_id, receipt.attempt_id), group)
    return LedgerEntry(
        round_id=receipt.round_id,
        base_offset=group.base_offset,
        now_ms=receipt.now_ms,
        horizon_ms=receipt.horizon_ms,
        committed_ms=committed_ms,
        stamped=group.stamped,
        bytes_before=sum(group.old_sizes) if group.old_sizes else -1,  # an older version's intent
        bytes_after=_file(group, "records").size,
        removed=tuple(Removed(*blob) for blob in blobs),
        end_offset=receipt.end_offset,
    )


def _removed(folder: Path, group: GroupReceipt) -> list[tuple[int, str, bytes]]:
    """The records that a group has lost, as the attempt wrote them down."""
    path = folder / attempt_file(group.base_offset, REMOVED)
    try:
        data = group.removed_offsets or path.read_bytes()
        return from_msgpack(data, list[tuple[int, str, bytes]])
    except OSError as e:
        raise unreadable(e, path) from e
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptData(str(path), 0, str(e)) from e


def _file(group: GroupReceipt, kind: str) -> FileReceipt:
    return next(f for f in group.files if f.kind == kind)


def finish_commit(log_dir: Path, env: CommitEnv) -> str | None:
    """After a crash, once the files are in order (W-5): complete the ledger and checkpoint.

    Returns the round's id if a commit was under way. Groups in place get their ledger entries; the
    checkpoint moves only if all groups are in place, so that missing groups are cleaned again,
    regardless of what the ledger says of them.
    """
    path = intent_path(log_dir)
    if not path.exists():
        return None
    receipt = _read_intent(path)
    if receipt is None:
        env.fs.unlink(path)
        return None
    groups = [g for g in receipt.groups if _in_place(log_dir, g)]
    if groups:
        env.fs.sync_all(_renamed(log_dir, groups))  # the process may have died before it
        ledger.write_anew(env.fs, log_dir)  # nor is it known whether a sync of it has failed
        booked, now_ms = _booked(log_dir, receipt), env.committed_ms()
        for group in (g for g in groups if g.base_offset not in booked):
            ledger.append(env.fs, log_dir, _entry(log_dir, receipt, group, now_ms))
        env.fs.sync_all(_booked_files(log_dir))
    if receipt.end_offset >= 0 and len(groups) == len(receipt.groups):
        env.set_checkpoint(receipt.end_offset)
    env.fs.unlink(path)
    return receipt.round_id


def settle(log: PartitionLog, fs: Fs, clock: Clock) -> None:
    """End a commit that was cut short while its log stays open: else its files stay till a restart.

    As the next commit of the log would; on a full disk there may be none before these go. Raises
    StorageError, and what reading the attempt raises.
    """
    if not intent_path(log.dir).exists():
        return
    with log.committing:
        if log.offline_reason is None and not log.is_closed:
            finish_commit(log.dir, CommitEnv(fs, clock, lambda _: None, log.latest_ms))


def _read_intent(path: Path) -> Receipt | None:
    """The intent; None if it is missing or incomplete, when nothing was in place yet."""
    try:
        receipt = from_json(path.read_bytes(), Receipt)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return receipt if all(_is_whole(group) for group in receipt.groups) else None


def _is_whole(group: GroupReceipt) -> bool:
    kinds = {file.kind for file in group.files}
    return kinds >= _ALWAYS and (REMOVED in kinds or bool(group.removed_offsets))


def _in_place(log_dir: Path, group: GroupReceipt) -> bool:
    """Whether the group's new segment is there and no old one is.

    The new segment alone proves nothing: it may equal the first old one byte for byte.
    """
    file = _file(group, "records")
    others = (base for base in group.old_bases if base != group.base_offset)
    has_old = any(segment_path(log_dir, base, LOG).exists() for base in others)
    new = segment_path(log_dir, group.base_offset, LOG)
    return not has_old and _checksum(new) == (file.size, file.crc)


def sweep(log_dir: Path, round_id: str, fs: Fs) -> None:
    """Remove a round's attempts."""
    fs.remove_tree(log_dir / FOLDER / round_id)
