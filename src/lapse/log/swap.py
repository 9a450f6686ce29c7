"""Replacing segments by rewritten ones, so that a crash anywhere leaves the old or the new.

W-2 and W-5: new files go attempt → `.cleaned` → `.swap` → final name, old ones →
`.deleted`. Until the last `.cleaned` is gone the old segments count; from then on the new ones.
`prepare`, `commit` and `recover` belong together: change neither without the other.

The new summaries travel along as `.lapse/<base>.summary.swap`, written while `.cleaned` files
exist and given their names at the end, so that the append clock survives a crash as well. Append
times survive likewise: a summary is there before its append times, and goes, or gets its name,
after them. So `recover` finds them after a crash.

Which old segments a new one replaces, `recover` learns from the commit's intent (`log.intent`): by
W-5 alone those past the new one's last offset would stay, half of a group that is in place.

Kafka, started on a directory we died in, finishes the swap by W-5; what it leaves is not booked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.log.append_times import SUFFIX as APPENDED
from lapse.log.append_times import append_times_path
from lapse.log.headers import walk
from lapse.log.intent import INTENT, replaced_groups
from lapse.log.segment import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    base_offset_of,
    offsets_in,
    segment_path,
)
from lapse.log.summary import FOLDER, SUFFIX, Summary, encode_summary, read_summary, summary_path

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TakeBreak = Callable[[], None]  # called between renames: the place to let others go first
_NEEDED = frozenset({LOG, INDEX, TIME_INDEX})


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A rewritten segment, its files written and synced somewhere on the same file system.

    Attributes:
        files: by suffix: `.log`, `.index`, `.timeindex`, and `.txnindex` if there is one.
        mtime_ns: what its files' mtime shall be: that of the last segment it replaces (F-11).
        append_times: their file; None: what is known of the segment with that base is left.
    """

    base_offset: int
    files: Mapping[str, Path]
    mtime_ns: int | None = None
    append_times: Path | None = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """One group's swap: `old` base offsets make place for `new`, each with its summary."""

    new: tuple[NewSegment, ...]
    old: tuple[int, ...]
    summaries: tuple[Summary, ...]

    def __post_init__(self) -> None:
        bases = [n.base_offset for n in self.new]
        if bases != [s.base_offset for s in self.summaries] or sorted(set(bases)) != bases:
            raise ValueError("a replacement needs its new segments ascending, each with a summary")
        if not self.old or sorted(set(self.old)) != list(self.old):
            raise ValueError("a replacement needs its old segments, ascending")
        if any(not n.files.keys() >= _NEEDED for n in self.new):
            raise ValueError(f"a new segment needs its {', '.join(sorted(_NEEDED))}")


def no_break() -> None:
    """Nobody else's work waits for this one's: it goes on at once."""


def prepare(
    fs: Fs, partition_dir: Path, replacement: Replacement, take_break: TakeBreak = no_break
) -> None:
    """The part of W-2 that can still be taken back: the log is as it was until `commit`."""
    for new in replacement.new:
        _to_cleaned(fs, partition_dir, new)
        take_break()
    for summary in replacement.summaries:
        path = summary_path(partition_dir, summary.base_offset)
        fs.make_dir(path.parent)
        fs.write_file(_with(path, SWAP), encode_summary(summary))
    for new in replacement.new:
        if new.append_times is not None:
            final = append_times_path(partition_dir, new.base_offset)
            fs.rename(new.append_times, _with(final, SWAP))


def abandon(fs: Fs, partition_dir: Path, replacement: Replacement) -> None:
    """Take `prepare` back."""
    for new in replacement.new:
        fs.unlink(_with(append_times_path(partition_dir, new.base_offset), SWAP))
        fs.unlink(_with(summary_path(partition_dir, new.base_offset), SWAP))
        for suffix in SEGMENT_SUFFIXES:
            fs.unlink(_with(segment_path(partition_dir, new.base_offset, suffix), CLEANED))


def commit(
    fs: Fs,
    partition_dir: Path,
    replacement: Replacement,
    old: Sequence[int],
    take_break: TakeBreak = no_break,
) -> list[Path]:
    """The renames; `old` are those of the replacement's old segments that still exist.

    Returns the `.deleted` files, to be unlinked later.
    """
    finals = {new.base_offset: _final_paths(partition_dir, new) for new in replacement.new}
    swaps = {path: _with(path, SWAP) for paths in finals.values() for path in paths}
    for new in reversed(replacement.new):  # (a) descending, so that W-5 can undo it
        for path in finals[new.base_offset]:
            fs.rename(_with(path, CLEANED), swaps[path])
        take_break()
    deleted: list[Path] = []  # (b) ascending: a value never outlives its tombstone
    for base_offset in old:
        deleted += mark_deleted(fs, partition_dir, base_offset)
        take_break()
    for new in replacement.new:  # (c)
        for path in finals[new.base_offset]:
            fs.rename(swaps[path], path)
        take_break()
    kept = {new.base_offset for new in replacement.new}
    for base_offset in old:
        if base_offset not in kept:  # F-12
            fs.unlink(segment_path(partition_dir, base_offset, SNAPSHOT))
            fs.unlink(summary_path(partition_dir, base_offset))
            fs.unlink(append_times_path(partition_dir, base_offset))
            take_break()
    for new in replacement.new:
        if new.append_times is not None:
            path = append_times_path(partition_dir, new.base_offset)
            fs.rename(_with(path, SWAP), path)
        path = summary_path(partition_dir, new.base_offset)
        fs.rename(_with(path, SWAP), path)
    return deleted


def put_in_place(partition_dir: Path, bases: Iterable[int]) -> list[Path]:
    """What must be durable of new segments with these bases, whose own files were synced before.

    Append times that were there already count too: nothing syncs them with their segment any more.
    """
    paths_of = (summary_path, append_times_path)
    ours = [path_of(partition_dir, base) for base in bases for path_of in paths_of]
    there = [path for path in ours if path.exists()]  # retention may have taken a segment
    return [*there, partition_dir / FOLDER, partition_dir]


def _to_cleaned(fs: Fs, partition_dir: Path, new: NewSegment) -> None:
    for suffix in SEGMENT_SUFFIXES:
        final = segment_path(partition_dir, new.base_offset, suffix)
        source = new.files.get(suffix)
        if source is None:
            fs.unlink(_with(final, CLEANED))  # W-1: nothing left over may come along
            continue
        if new.mtime_ns is not None:
            fs.set_mtime_ns(source, new.mtime_ns)
        fs.rename(source, _with(final, CLEANED))


def _final_paths(partition_dir: Path, new: NewSegment) -> list[Path]:
    """The log file first."""
    return [
        segment_path(partition_dir, new.base_offset, suffix)
        for suffix in SEGMENT_SUFFIXES
        if suffix in new.files
    ]


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def mark_deleted(fs: Fs, partition_dir: Path, base_offset: int) -> list[Path]:
    """Rename a segment's files `.deleted`, the log first; returns their new paths."""
    paths = [segment_path(partition_dir, base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
    deleted = {path: _with(path, DELETED) for path in paths if path.exists()}
    for path, gone in deleted.items():
        fs.rename(path, gone)
    return list(deleted.values())


def recover(fs: Fs, partition_dir: Path) -> None:
    """W-5: put right what a crash during `commit` or a deletion left.

    May be cut short anywhere itself: old segments go before the new ones get their names.
    """
    names = sorted(entry.name for entry in os.scandir(partition_dir) if entry.is_file())
    unlink_all(fs, partition_dir, names, lambda name: name.endswith(DELETED))
    cleaned = [_base(name) for name in names if name.endswith(CLEANED)]
    if cleaned:
        unlink_all(
            fs, partition_dir, names,
            lambda name: name.endswith(SWAP) and _base(name) >= min(cleaned),
        )  # fmt: skip
        names = [n for n in names if not n.endswith(SWAP) or _base(n) < min(cleaned)]
        _drop_new_summaries(fs, partition_dir, lambda base_offset: base_offset >= min(cleaned))
        unlink_all(fs, partition_dir, names, lambda name: name.endswith(CLEANED))
    _finish_swaps(fs, partition_dir, [n for n in names if not n.endswith((CLEANED, DELETED))])
    _adopt_summaries(fs, partition_dir)


def unlink_all(
    fs: Fs, partition_dir: Path, names: Iterable[str], which: Callable[[str], bool]
) -> None:
    """Unlink the named files that `which` picks."""
    for name in names:
        if which(name):
            fs.unlink(partition_dir / name)


def _finish_swaps(fs: Fs, partition_dir: Path, names: Sequence[str]) -> None:
    swaps = [name for name in names if name.endswith(SWAP)]
    logs = [name for name in swaps if name.endswith(LOG + SWAP)]
    if logs:
        start = _base(logs[0])
        end = max(_end_offset(partition_dir / name, _base(name)) for name in logs)
        replaced = _replaced(partition_dir, names, {_base(name) for name in logs})
        others = (name for name in names if not name.endswith(SWAP))
        for name in others:
            base_offset = base_offset_of(name)
            if base_offset is None:
                continue
            if not start <= base_offset < end and base_offset not in replaced:
                continue
            if name.endswith(SNAPSHOT) and base_offset == start:
                continue  # state below the group: as good as before
            fs.unlink(partition_dir / name)
    for name in swaps:
        fs.rename(partition_dir / name, partition_dir / name.removesuffix(SWAP))
    if swaps:
        fs.fsync_dir(partition_dir)


def _replaced(partition_dir: Path, names: Sequence[str], new: Collection[int]) -> set[int]:
    """Old segments that the intent names for these new ones, with the bytes they had then.

    A new one is called `.swap` only from when the commit can no longer be taken back, until its
    old ones are gone. So no other owner can have changed files in between.
    """
    groups = [group for group in replaced_groups(partition_dir) if group.base_offset in new]
    sizes = {
        base_offset: segment_path(partition_dir, base_offset, LOG).stat().st_size
        for base_offset in offsets_in(names, LOG)
        if groups and base_offset not in new
    }
    return {
        base_offset
        for base_offset, size in sizes.items()
        if any(group.replaces(base_offset, size) for group in groups)
    }


def _end_offset(path: Path, base_offset: int) -> int:
    """One past the last offset in a log file, as far as it can be read."""
    end = base_offset + 1
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            for rows in walk(file.fileno(), 0, size, str(path)):
                end = int(rows["last_offset"][-1]) + 1
        except CorruptData:
            return end  # loading the segment deals with it
    return end


def _new_summaries(partition_dir: Path) -> list[Path]:
    folder = partition_dir / FOLDER
    return sorted(folder.glob(f"*{SUFFIX}{SWAP}")) if folder.is_dir() else []


def _drop_new_summaries(fs: Fs, partition_dir: Path, which: Callable[[int], bool]) -> None:
    for path in _new_summaries(partition_dir):
        if which(_base(path.name)):
            fs.unlink(_new_append_times(path))
            fs.unlink(path)


def _adopt_summaries(fs: Fs, partition_dir: Path) -> None:
    """The swap is through: its summaries count, where they are of the file that is there."""
    for path in _new_summaries(partition_dir):
        summary, log = read_summary(path), segment_path(partition_dir, _base(path.name), LOG)
        times = _new_append_times(path)
        if summary is not None and log.exists() and log.stat().st_size == summary.size:
            if times.exists():
                fs.rename(times, times.with_name(times.name.removesuffix(SWAP)))
            fs.rename(path, path.with_name(path.name.removesuffix(SWAP)))
        else:
            fs.unlink(times)
            fs.unlink(path)


def _new_append_times(summary: Path) -> Path:
    """The new append times' file beside a `.summary.swap`, if there is one."""
    return summary.with_name(summary.name.replace(SUFFIX, APPENDED))


def _base(name: str) -> int:
    """Base offset in a file name like a segment's; other names sort last."""
    base_offset = base_offset_of(name)
    return base_offset if base_offset is not None else 1 << 63


def sweep_attempts(fs: Fs, partition_dir: Path) -> int:
    """Remove attempts left in `.lapse/<round>/`, unless a commit is under way; returns how many.

    The caller must know that no round is running on the log.
    """
    folder = partition_dir / FOLDER
    if not folder.is_dir() or (folder / INTENT).exists():
        return 0
    rounds = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    for path in rounds:
        fs.remove_tree(path)
    return len(rounds)


assert SEGMENT_SUFFIXES[0] == LOG  # renamed first: W-5 goes by log files
