"""A log with a little of everything, and all that readers and coordinators can know of one."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.log.epochs import EpochEnd
from lapse.log.partition_log import PartitionLog
from lapse.log.producers import Producer
from lapse.log.state import Unstable
from lapse.records.append_times import RESOLUTION_MS
from tests.support.log.logs import NOW, append, batch, batches_of, data, end

STEP_MS = 2 * RESOLUTION_MS  # between two appends


def fill(log: PartitionLog) -> list[int]:
    """Plain batches, transactions and epochs over several segments; where each append ended."""
    ends = []
    for n in range(6):
        now_ms = NOW + n * 6 * STEP_MS
        sent = batch(producer_id=9, producer_epoch=0, base_sequence=3 * n, timestamp=now_ms)
        append(log, sent, now_ms=now_ms, epoch=n)
        ends.append(log.log_end_offset)
        data(log, 1, 2 * n)
        ends.append(log.log_end_offset)
        data(log, 2, 2 * n)
        ends.append(log.log_end_offset)
        end(log, 1, commit=n % 2 == 0)
        ends.append(log.log_end_offset)
        append(log, batch(records=4, size=200, timestamp=now_ms - 50), now_ms=now_ms, epoch=n)
        ends.append(log.log_end_offset)
        if n == 3:
            end(log, 2, commit=False)
            ends.append(log.log_end_offset)
    return ends


@dataclass(frozen=True)
class Content:
    """What readers and coordinators can know of a log."""

    batches: dict[int, bytes]
    end_offset: int
    producers: list[object]
    unstable: Unstable
    aborted: list[object]
    epochs: list[EpochEnd | None]
    times: list[object]

    @staticmethod
    def of(log: PartitionLog, upper: int) -> Content:
        state = log.state
        return Content(
            batches_of(log),
            log.log_end_offset,
            [in_snapshots(producer) for producer in log.producers()],
            state.unstable,
            list(log.aborted_transactions(0, upper)),
            [log.end_of_epoch(epoch) for epoch in range(6)][: log.epoch_at(upper - 1) + 1],
            [state.offset_for_time(NOW + n * STEP_MS) for n in range(40)],
        )


def in_snapshots(one: Producer) -> object:
    """What a snapshot has of a producer, and so a log that was opened (P-1)."""
    last = one.batches[-1]._replace(timestamp=one.last_timestamp) if one.batches else None
    return one.producer_id, one.epoch, last, one.coordinator_epoch, one.transaction_first_offset
