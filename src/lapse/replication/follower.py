"""What a follower does with its leader's answer: append it as it is, or cut back what differs.

Blocking; called by one thread at a time for a log. A follower has what its leader has, byte for
byte, or less. Where its own log has parted from the leader's, since records of an earlier leader
were never committed, the leader says up to which epoch and offset they agree (KIP-595), and what
lies above is cut off.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from lapse.base.fs import Buffer
from lapse.kernels import scan
from lapse.log.directory import LogDirectory
from lapse.log.epochs import NO_EPOCH
from lapse.log.lookup import LastBatch
from lapse.log.partition_log import PartitionLog
from lapse.records.append_times import NOTHING, AppendTimes
from lapse.records.batch import scan_prefix

_CUT = scan.REASONS[scan.TRUNCATED]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A leader's answer for one partition, without an error.

    Attributes:
        diverging: the last epoch that both have, and where it ends at the leader; None where what
            the follower has is the leader's, too.
        append_times: when the leader appended the records.
        epochs: of which leaders they are, each with where it begins.
        create_times_kept: as in `Summary`.
    """

    records: Buffer
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None = None
    append_times: AppendTimes = NOTHING
    create_times_kept: bool = True
    epochs: tuple[tuple[int, int], ...] = ()


class Then(Enum):
    """What came of an answer; UNSAID: not what it was asked for."""

    GOES_ON = auto()
    TRUNCATED = auto()
    UNSAID = auto()


def take(log: PartitionLog, directory: LogDirectory, fetched: Fetched, leader_epoch: int) -> Then:
    """Carry out a leader's answer, which was given in `leader_epoch`.

    Raises NOT_LEADER_OR_FOLLOWER where that is over, KAFKA_STORAGE_ERROR, CorruptData.
    """
    if fetched.diverging is not None:
        truncate(log, directory, agreed_end(log, *fetched.diverging), leader_epoch)
        return Then.TRUNCATED
    records = whole_batches(fetched.records)
    if len(records):
        _append(log, records, fetched, leader_epoch)
    _raise_high_watermark(log, fetched)
    if fetched.log_start_offset > log.log_start_offset:
        log.advance_log_start(min(fetched.log_start_offset, log.high_watermark))
    return Then.GOES_ON


def compared_from(log: PartitionLog, last: LastBatch) -> int:
    """Where an answer begins that tells whether the last batch of a log is right.

    Not at that batch: who asks for an offset says that it has all before, and where the base offset
    is wrong it has not.
    """
    return max(last.end_before, log.log_start_offset)


def compare(
    log: PartitionLog, directory: LogDirectory, last: LastBatch, fetched: Fetched, leader_epoch: int
) -> Then:
    """Carry out an answer about the last batch of a log, as that is after a crash.

    Where the leader has another one there, this one is damaged in its base offset, which no
    checksum covers, or a round has made it smaller on one side alone: it is cut off and fetched
    again. No more than that: behind any other batch there was one that would have contradicted it,
    and a leader that has been cleaned further differs all the way down. Then the log is proven. No
    record is taken. `fetched` is `compared_from` there; without records it is UNSAID, since others
    may have had all the room. Raises as `take`.
    """
    if fetched.diverging is not None:
        return take(log, directory, fetched, leader_epoch)
    rows = scan_prefix(whole_batches(fetched.records))[0]
    if not len(rows):
        return Then.UNSAID
    if _is_right(last, rows, compacts=log.config.compacts):
        log.prove()
        return take(log, directory, replace(fetched, records=b""), leader_epoch)
    _log.warning(
        "%s: its last batch, at offsets %d to %d, is not what the leader of epoch %d has from %d "
        "on: cut off, and fetched again",
        log.partition, last.base_offset, last.last_offset, leader_epoch, last.end_before,
    )  # fmt: skip
    directory.truncate_log(log, last.end_before, leader_epoch)
    log.prove()
    return Then.TRUNCATED


def _is_right(last: LastBatch, rows: NDArray[np.void], *, compacts: bool) -> bool:
    """Whether a leader with these batches, one at least, has the last batch of this log, too.

    Where a topic is compacted the leader may have removed it, and rounds here may have removed what
    was before it; but not one that is the same: that is the place where it belongs.
    """
    same = rows["crc"] == last.crc
    there = same & (rows["base_offset"] == last.base_offset)
    there &= rows["last_offset"] == last.last_offset
    before = rows["last_offset"] < last.base_offset
    behind = rows["base_offset"] > last.last_offset
    if not compacts:
        return bool(there[0])
    if there.any():
        return not (same & before).any()
    return bool(behind.any() and (before | behind).all())


def take_at_once(log: PartitionLog, fetched: Fetched, leader_epoch: int) -> bool:
    """Carry out what takes one short write to an open file; False: nothing is done, `take` it.

    For the event loop, which waits for no file. Raises as `take`.
    """
    if fetched.diverging is not None or fetched.log_start_offset > log.log_start_offset:
        return False
    records = whole_batches(fetched.records)
    if len(records):
        # A batch of a new epoch has that noted in a file first.
        if log.latest_epoch != leader_epoch or not log.try_begin(len(records)):
            return False
        try:
            _append(log, records, fetched, leader_epoch)
        finally:
            log.end()
    _raise_high_watermark(log, fetched)
    return True


def _append(log: PartitionLog, records: Buffer, fetched: Fetched, leader_epoch: int) -> None:
    log.append_raw(
        records, leader_epoch=leader_epoch, append_times=fetched.append_times,
        create_times_kept=fetched.create_times_kept, epochs=fetched.epochs,
    )  # fmt: skip


def _raise_high_watermark(log: PartitionLog, fetched: Fetched) -> None:
    known, reached = log.high_watermark, min(fetched.high_watermark, log.log_end_offset)
    if reached > known:
        log.high_watermark = reached


def whole_batches(records: Buffer) -> Buffer:
    """Less the last batch where that is cut: an answer has as many bytes as were asked for.

    What is wrong otherwise stays, for `append_raw` to refuse.
    """
    _, covered, reason = scan_prefix(records, check_crc=False)
    return memoryview(records)[:covered] if reason == _CUT else records


def agreed_end(log: PartitionLog, epoch: int, leader_end: int) -> int:
    """Up to where a log is the leader's, which has no more of `epoch` than up to `leader_end`."""
    own = log.end_of_epoch(epoch)
    return leader_end if own is None else min(leader_end, own.end_offset)


def truncate(log: PartitionLog, directory: LogDirectory, offset: int, leader_epoch: int) -> None:
    """Cut off what the leader of that epoch does not have, and say it if it was committed."""
    if offset < log.high_watermark:
        _log.error(
            "%s: the leader of epoch %d ends at %d, below the high watermark %d here: records "
            "that were committed are lost",
            log.partition, leader_epoch, offset, log.high_watermark,
        )  # fmt: skip
    directory.truncate_log(log, offset, leader_epoch)


def begin(log: PartitionLog, directory: LogDirectory, leader_epoch: int) -> None:
    """Follow a leader from now on. A log that knows no epochs goes back to what is committed.

    So it was before KIP-101: what lies above may differ from what the leader has. Kafka does so
    for all records of old formats, which do not say their epochs; here the leader says them. There
    are none only where all of the log is from before there was a cluster.
    """
    log.follow(leader_epoch)
    if log.latest_epoch == NO_EPOCH and log.log_end_offset > log.high_watermark:
        directory.truncate_log(log, log.high_watermark, leader_epoch)


def start_over(log: PartitionLog, directory: LogDirectory, offset: int, leader_epoch: int) -> None:
    """The log of that epoch's leader starts above the end of this one: nothing here is of use."""
    _log.warning("%s: begins anew at the leader's log start %d", log.partition, offset)
    directory.restart_log(log, offset, leader_epoch)
