"""Findings in the logs of a directory that no broker serves, and an operator's choices for them.

`look` only reads. `decide` does what an operator has chosen for one finding; its caller owns the
directory. Each choice may be cut short by a crash and is then found again.

Offsets are never given twice: where the end of a log is lost, it goes on at the end it had. Bytes
that are cut off are kept aside (`aside`), as by recovery.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import Fs, storage_errors
from lapse.base.ids import TopicPartition, parse_topic_id
from lapse.kernels import scan
from lapse.kernels.find_key import next_candidate
from lapse.kernels.layout import BATCH
from lapse.log import checkpoints
from lapse.log.append_times import append_times_path
from lapse.log.aside import keep_segment, keep_tail
from lapse.log.bad import read_bad
from lapse.log.directory import LogDirectory
from lapse.log.epochs_found import EpochsCheck
from lapse.log.folders import list_partitions
from lapse.log.holes import holes_in
from lapse.log.manifest import Manifest, ManifestKeeper, read_manifest
from lapse.log.missing import believed_roster
from lapse.log.others import read_others
from lapse.log.readable import SegmentBytes, readable
from lapse.log.roster import Expected, Roster
from lapse.log.segment import LOG, SEGMENT_SUFFIXES, TXN_INDEX, offsets_in, segment_path
from lapse.log.start import read_start
from lapse.log.summary import FOLDER, read_summary, summary_path
from lapse.log.swap import SWAP
from lapse.log.upgrade import swap_in

ATTEMPT = "repair"


class Choice(StrEnum):
    """The choices that an operator has for a finding."""

    ACCEPT_HOLE = "accept-hole"
    ACCEPT_EMPTY = "accept-empty"
    CUT = "cut"
    LET_GO = "let-go"
    FETCH_ANEW = "fetch-anew"
    ACCEPT_EPOCHS = "accept-epochs"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a log.

    Attributes:
        first_offset, end_offset: what is not there or cannot be read, at most.
        choice: what can be done where the bytes cannot be had back. What other brokers have is
            fetched from them: a hole here would be theirs, too, once this broker leads.
        alone: the choice if none of those has the bytes either.
        segment_base: of the segment it is about; -1 where there is none.
        is_offline: a broker does not open the log until this is decided.
        is_decided: it is to be fetched anew already.
    """

    partition: TopicPartition
    first_offset: int
    end_offset: int
    why: str
    choice: Choice
    segment_base: int = -1
    is_offline: bool = True
    alone: Choice | None = None
    is_decided: bool = False


def look(
    log_dir: Path, partitions: Sequence[TopicPartition] = (), *, reads_all: bool = False
) -> list[Finding]:
    """Findings in some logs, or all; nothing is changed.

    Without `reads_all` only what is known to be missing, or was met by a round, and what the last
    segment shows; with it every batch is read and its checksum made. Raises StorageError.
    """
    roster = believed_roster(log_dir)
    known = {} if roster is None else roster.partitions
    here = list_partitions(log_dir)
    wanted = partitions or sorted({*here, *known})
    points = {} if roster is None else _recovery_points(log_dir)
    found: list[Finding] = []
    for partition in wanted:
        point = points.get(partition, 0)
        folder = log_dir / str(partition)
        expected = known.get(partition, Expected())
        is_replicated = expected.replicated or bool(read_others(folder).replicas)
        epochs = EpochsCheck(folder) if is_replicated else None
        wrong = list(_of(folder, partition, roster, point, reads_all=reads_all, epochs=epochs))
        if epochs is not None and not wrong:
            wrong += _strange_epochs(folder, partition, point, epochs)
        found += [_of_many(one, expected) for one in wrong] if is_replicated else wrong
    return found


def require_logs(log_dir: Path, partitions: Sequence[TopicPartition]) -> None:
    """Raise StorageError for one that is neither there nor remembered: a name that is mistyped.

    Nothing would be found wrong with it, as with a log that is in order.
    """
    roster = believed_roster(log_dir)
    there = {*list_partitions(log_dir), *(() if roster is None else roster.partitions)}
    for partition in partitions:
        if partition not in there:
            raise StorageError(f"{log_dir}: holds no log {partition}")


def _of_many(finding: Finding, expected: Expected) -> Finding:
    return replace(
        finding, choice=Choice.FETCH_ANEW, alone=finding.choice, is_decided=expected.fetch_anew
    )


def _recovery_points(log_dir: Path) -> dict[TopicPartition, int]:
    try:
        return checkpoints.read_offsets(log_dir / checkpoints.RECOVERY_POINT)
    except CorruptData:
        return {}  # as when the directory is opened


def _of(
    folder: Path, partition: TopicPartition, roster: Roster | None, recovery_point: int, *,
    reads_all: bool, epochs: EpochsCheck | None,
) -> Iterator[Finding]:  # fmt: skip
    names = os.listdir(folder) if folder.is_dir() else []
    bases = offsets_in(names, LOG)
    expected = None if roster is None else roster.partitions.get(partition)
    if not bases and not any(name.endswith(LOG + SWAP) for name in names):
        if expected is not None:
            why = "its folder has no segment" if folder.is_dir() else "its folder is gone"
            yield Finding(partition, 0, expected.end_offset, why, Choice.ACCEPT_EMPTY)
        return
    manifest = read_manifest(folder)
    if manifest is not None and (roster is None or manifest.era != roster.era):
        manifest = None  # it does not count
    start = read_start(folder).offset
    holes = [] if manifest is None else holes_in(folder, manifest, start)
    for hole in holes:
        base = max((b for b in bases if b <= hole.first_offset), default=-1)
        yield Finding(
            partition, hole.first_offset, hole.end_offset, hole.why, Choice.ACCEPT_HOLE, base
        )
    if not holes:
        synced = _Synced({}, 0, 0)
        if manifest is not None:
            point = recovery_point if start < recovery_point else 0
            synced = _Synced(manifest.sizes, manifest.end_offset, point)
        yield from _unreadable(folder, partition, bases, synced, reads_all=reads_all, epochs=epochs)


@dataclass(frozen=True, slots=True)
class _Synced:
    """The synced part of a log: bytes by segment, its end, and the offset below which all is.

    A cut that was cut short has struck the bytes, and the point is left.
    """

    sizes: Mapping[int, int]
    end_offset: int
    point: int

    def has(self, base: int, broken: _Broken) -> bool:
        """Whether a place was: then no crash has broken it, and no recovery cuts it off."""
        return broken.position < self.sizes.get(base, 0) or broken.offset < self.point


def _unreadable(
    folder: Path, partition: TopicPartition, bases: Sequence[int], synced: _Synced, *,
    reads_all: bool, epochs: EpochsCheck | None,
) -> Iterator[Finding]:  # fmt: skip
    """Places in segments that do not read; in the last one only what was synced counts."""
    bad = read_bad(folder)
    filled = [base for base in bases if segment_path(folder, base, LOG).stat().st_size]
    if not filled:
        return
    last = max(filled)  # behind it is at most what a cut that was cut short has made
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        is_last = base >= last
        summary = read_summary(summary_path(folder, base))
        is_known = (bad is not None and bad.segment_base == base) or (
            summary is not None and summary.unreadable_from >= 0
        )
        if not (reads_all or is_known or is_last):
            continue
        broken = _first_broken(segment_path(folder, base, LOG), base, following, epochs)
        if broken is None or (is_last and not synced.has(base, broken)):
            continue  # recovery cuts that off by itself
        until = max(synced.end_offset, broken.offset + 1) if following is None else following
        choice = Choice.CUT if is_last else Choice.LET_GO
        yield Finding(
            partition, broken.offset, until, broken.why, choice, base, is_offline=following is None
        )


@dataclass(frozen=True, slots=True)
class _Broken:
    """The first place of a file that does not read, and the offset expected there."""

    position: int
    offset: int
    why: str


def _first_broken(
    path: Path, base_offset: int, next_base: int | None, epochs: EpochsCheck | None = None
) -> _Broken | None:
    """`epochs` sees all before it."""
    offset = base_offset
    try:
        with storage_errors(path, "reading"), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            segment = SegmentBytes(file.fileno(), size, base_offset, next_base, path.name)
            for part in readable(segment, check_crc=True):
                offset = int(part.rows["last_offset"][-1]) + 1
                if epochs is not None:
                    epochs.see(base_offset, part.rows)
    except CorruptData as e:
        return _Broken(e.position, offset, str(e))
    return None


def _strange_epochs(
    folder: Path, partition: TopicPartition, recovery_point: int, epochs: EpochsCheck
) -> Iterator[Finding]:
    """The first batch whose leader epoch is not the noted one, of what was read or recovery reads.

    By an epoch that is later than all noted ones this log, and those of other brokers, would be cut
    back, so a log in which recovery meets one is not opened.
    """
    recovered = []
    bases = offsets_in(os.listdir(folder), LOG)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is None or following > recovery_point:
            recovered.append(base)
            if base not in epochs.seen:
                _first_broken(segment_path(folder, base, LOG), base, following, epochs)
    if epochs.strange is not None:
        base, first, last, why, is_later = epochs.strange
        yield Finding(
            partition, first, last + 1, why, Choice.ACCEPT_EPOCHS, base,
            is_offline=is_later and base in recovered,
        )  # fmt: skip


# --- deciding ------------------------------------------------------------------------------------


def decide(directory: LogDirectory, fs: Fs, finding: Finding, config: TopicConfig) -> str:
    """Carry out the finding's choice; returns a text of what was done. Raises StorageError."""
    done = _ACTS[finding.choice](directory, fs, finding, config)
    if finding.is_decided and finding.choice is not Choice.FETCH_ANEW:
        directory.want_anew(finding.partition, wanted=False)
    return done


def _accept_hole(directory: LogDirectory, fs: Fs, finding: Finding, _config: TopicConfig) -> str:
    folder = directory.path / str(finding.partition)
    keeper = ManifestKeeper(fs, folder, directory.era)
    known = keeper.found or Manifest(directory.era)
    gone = [h for h in holes_in(folder, known, 0) if h.first_offset == finding.first_offset]
    begun = max((b for b in known.sizes if b <= finding.first_offset), default=0)
    is_end = finding.end_offset >= known.end_offset
    resumed = _resume(folder, fs, known.end_offset) if is_end else ""
    keeper.strike([begun, *(h.first_offset for h in gone)])
    offsets = f"{finding.first_offset} to {finding.end_offset - 1}"
    return f"the log goes on without offsets {offsets}{resumed}"


def _resume(folder: Path, fs: Fs, end_offset: int) -> str:
    """An empty segment at the end that the log had: no offset is given twice."""
    path = segment_path(folder, end_offset, LOG)
    if not path.exists():
        fs.write_file(path, b"")
        fs.fsync_file(path)
        fs.fsync_dir(folder)
    return f", new records begin at {end_offset}"


def _fetch_anew(directory: LogDirectory, _fs: Fs, finding: Finding, _config: TopicConfig) -> str:
    """Nothing is removed before the broker knows that another one is in sync (`broker.cluster`)."""
    directory.want_anew(finding.partition)
    return "removed and fetched anew when the broker starts, if one that is in sync is there"


def _accept_empty(directory: LogDirectory, fs: Fs, finding: Finding, _config: TopicConfig) -> str:
    partition = finding.partition
    expected = directory.lost(partition)
    if expected is None:
        raise StorageError(f"{partition}: its log is there again; look once more")
    folder = directory.path / str(partition)
    fs.make_dir(folder)
    if expected.topic_id:
        checkpoints.write_topic_id(fs, folder, parse_topic_id(expected.topic_id))
    resumed = _resume(folder, fs, expected.end_offset)
    fs.fsync_dir(directory.path)
    return f"the log is empty{resumed}"


def _cut(directory: LogDirectory, fs: Fs, finding: Finding, _config: TopicConfig) -> str:
    folder, base = directory.path / str(finding.partition), finding.segment_base
    keeper = ManifestKeeper(fs, folder, directory.era)
    known = keeper.found or Manifest(directory.era)
    path = segment_path(folder, base, LOG)
    broken = _first_broken(path, base, None)
    if broken is None:
        return "nothing is to be cut off any more"
    end = max(known.end_offset, broken.offset)
    resumed = _resume(folder, fs, end)  # first: so no crash can have an offset given twice
    later = [b for b in offsets_in(os.listdir(folder), LOG) if b > base and b != end]
    keeper.strike([base, *later])
    kept = [keep_segment(fs, folder, b) for b in reversed(later)]
    _unlink_segments(folder, fs, later)
    kept.append(keep_tail(fs, folder, base, broken.position))
    for suffix in SEGMENT_SUFFIXES[1:]:  # they speak of what goes, and are made again
        fs.unlink(segment_path(folder, base, suffix))
    fs.fsync_dir(folder)
    fs.truncate(path, broken.position)
    fs.fsync_file(path)
    places = ", ".join(str(one) for one in kept if one is not None)
    return f"cut off at byte {broken.position}, offset {broken.offset}{resumed}" + (
        f"; kept as {places}" if places else ""
    )


def _accept_epochs(directory: LogDirectory, fs: Fs, finding: Finding, _config: TopicConfig) -> str:
    """The file is made again from what batches say when the log is opened."""
    folder = directory.path / str(finding.partition)
    fs.unlink(folder / checkpoints.LEADER_EPOCHS)
    fs.fsync_dir(folder)
    return "leader epochs are what the batches say"


def _unlink_segments(folder: Path, fs: Fs, bases: Sequence[int]) -> None:
    for base in reversed(bases):
        for suffix in SEGMENT_SUFFIXES:
            fs.unlink(segment_path(folder, base, suffix))
        fs.unlink(summary_path(folder, base))
        fs.unlink(append_times_path(folder, base))
    fs.fsync_dir(folder)


def _let_go(directory: LogDirectory, fs: Fs, finding: Finding, config: TopicConfig) -> str:
    """The segment is rewritten with all that reads, by a swap."""
    log = directory.open_log(finding.partition, config)
    base = finding.segment_base
    [segment] = [s for s in log.segments if s.base_offset == base]
    following = log.segments[log.segments.index(segment) + 1].base_offset
    attempt = log.dir / FOLDER / ATTEMPT
    fs.remove_tree(attempt)
    fs.make_dir(attempt)
    path = segment_path(attempt, base, LOG)
    data = np.frombuffer(segment.path().read_bytes(), np.uint8)
    with closing(fs.open_append(path)) as out:
        for start, end in sound_stretches(data, base, following):
            out.write(data[start:end].tobytes())
    kept = keep_tail(fs, log.dir, base, 0, len(data))  # all of it: there may be no other copy
    if kept is None and data.any():
        fs.remove_tree(attempt)
        raise StorageError(f"{segment.path()} cannot be kept aside; nothing is changed")
    lost = len(data) - out.size
    swap_in(log, segment, attempt, fs, following)
    fs.unlink(segment_path(log.dir, base, TXN_INDEX))  # made again from what is left
    fs.remove_tree(attempt)
    return f"{lost} bytes that do not read are let go" + (
        f"; the segment is kept as {kept}" if kept else ""
    )


_SOUND = np.dtype([
    (name, np.int64) for name in ("position", "size", "base_offset", "last_offset", "count")
])  # fmt: skip


def sound_stretches(
    data: NDArray[np.uint8], base_offset: int, end_offset: int
) -> Iterator[tuple[int, int]]:
    """Byte ranges of `data` that are batches with right checksums, their offsets ascending.

    No checksum covers a batch's base offset. So of sound batches that are not in order those are
    left out without which most are: the one whose offset is damaged, and not those it overlaps.
    """
    rows = _sound_batches(data)
    begins, lasts = rows["base_offset"], rows["last_offset"]
    rows = rows[(base_offset <= begins) & (begins <= lasts) & (lasts < end_offset)]
    rows = rows[_in_order(rows, base_offset, end_offset)]
    starts, ends = rows["position"], rows["position"] + rows["size"]
    first = np.append(np.ones(len(rows[:1]), np.bool_), starts[1:] != ends[:-1])
    last = np.append(first[1:], np.ones(len(rows[:1]), np.bool_))
    yield from zip(starts[first].tolist(), ends[last].tolist(), strict=True)


def _sound_batches(data: NDArray[np.uint8]) -> NDArray[np.void]:
    """All batches with right checksums, whatever their offsets say."""
    rows, found, at = np.empty(1024, BATCH), [np.empty(0, _SOUND)], 0
    while at < len(data):
        n, stopped, _ = scan.scan(data, at, len(data), rows, scan.CHECK_ALL)
        part = np.empty(n, _SOUND)
        for name in _SOUND.names or ():
            part[name] = rows[name][:n]
        found.append(part)
        at = int(stopped)
        if not n:
            candidate = int(next_candidate(data, at + 1, len(data), len(data)))
            at = candidate if candidate >= 0 else len(data)
    return np.concatenate(found)


def _in_order(rows: NDArray[np.void], base_offset: int, end_offset: int) -> NDArray[np.bool_]:
    """Which batches to keep: all but those that the longest ascending chain leaves out."""
    kept = np.ones(len(rows), np.bool_)
    most = np.maximum.accumulate(rows["last_offset"])
    least = np.minimum.accumulate(rows["base_offset"][::-1])[::-1]
    mixed = np.flatnonzero(most[:-1] >= least[1:])  # with something behind them
    if len(mixed):
        low, high = int(mixed[0]), int(mixed[-1]) + 2
        before = int(most[low - 1]) if low else base_offset - 1
        behind = int(least[high]) if high < len(rows) else end_offset
        kept[low:high] = False
        kept[[low + n for n in _longest_chain(rows[low:high], before, behind)]] = True
    return kept


@dataclass(frozen=True, slots=True, order=True)
class _Chain:
    """What can be kept up to a batch; the greater one is better.

    Attributes:
        batches: of these most: one damage has hurt one batch.
        joints: batches of it that begin where the one before them ends, as they were appended.
        records: in it.
        index, link: its last batch, and the chain before that; they do not count.
    """

    batches: int
    joints: int
    records: int
    index: int = field(default=-1, compare=False)
    link: _Chain | None = field(default=None, compare=False)


def _longest_chain(rows: NDArray[np.void], before: int, behind: int) -> list[int]:
    """The batches of the best chain; `before` is the last offset ahead of it, `behind` follows."""
    nothing = _Chain(0, 0, 0)
    ends, best = [before], [nothing]  # chains that no shorter-reaching one is as good as
    ended_at = {before: nothing}  # the best of all that end at an offset
    columns = (rows["base_offset"], rows["last_offset"], np.abs(rows["count"]))
    for n, (begin, last, count) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        links = [(best[bisect_left(ends, begin) - 1], 0)]
        if begin - 1 in ended_at:
            links.append((ended_at[begin - 1], 1))
        made = max(
            _Chain(one.batches + 1, one.joints + joint, one.records + count, n, one)
            for one, joint in links
        )
        if last not in ended_at or made > ended_at[last]:
            ended_at[last] = made
        at = bisect_left(ends, last + 1)
        if made > best[at - 1]:
            until = at
            while until < len(ends) and best[until] <= made:
                until += 1
            at -= ends[at - 1] == last
            ends[at:until], best[at:until] = [last], [made]
    chain: _Chain | None = best[-1]
    joined = ended_at.get(behind - 1)
    if joined is not None and chain is not None:
        chain = max(chain, replace(joined, joints=joined.joints + 1))
    found = []
    while chain is not None and chain.index >= 0:
        found.append(chain.index)
        chain = chain.link
    return found


_ACTS = {
    Choice.ACCEPT_HOLE: _accept_hole,
    Choice.ACCEPT_EMPTY: _accept_empty,
    Choice.CUT: _cut,
    Choice.LET_GO: _let_go,
    Choice.FETCH_ANEW: _fetch_anew,
    Choice.ACCEPT_EPOCHS: _accept_epochs,
}
