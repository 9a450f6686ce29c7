"""An append that began under one leader never ends under another (KIP-101, KIP-320)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, NewRecord
from tests.support.log.logs import NOW, append, batch, end, open_log


def refused(log: PartitionLog, epoch: int) -> None:
    """In every way in which something is appended."""
    before = log.log_end_offset
    raw = batch(records=1, base_offset=before, leader_epoch=epoch)
    own = NewRecord(b"k", b"v", NOW)
    for work in (
        lambda: append(log, batch(), epoch=epoch),
        lambda: log.append_raw(raw, leader_epoch=epoch),
        lambda: log.append_own([own], BatchSpec(leader_epoch=epoch), now_ms=NOW),
        lambda: log.append_marker(7, 0, True, 0, leader_epoch=epoch, now_ms=NOW),
    ):
        with pytest.raises(KafkaError, match=f"leader epoch {epoch} is over") as e:
            work()
        assert e.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.log_end_offset == before


def test_who_led_before_appends_no_more(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.lead(3)
    append(log, batch(), epoch=3)
    log.follow(5)
    refused(log, 3)
    refused(log, 4)
    log.append_raw(batch(base_offset=3, leader_epoch=5), leader_epoch=5)
    log.lead(6)
    refused(log, 5)
    append(log, batch(), epoch=6)
    assert log.leader_epoch == log.latest_epoch == 6


def test_the_guard_outlasts_a_truncation(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, batch(), epoch=0)
    log.follow(5)
    log.truncate_to(1)
    refused(log, 4)
    log.restart_at(10)
    refused(log, 4)


def test_who_follows_notes_no_epoch_without_a_batch_of_it(tmp_path: Path) -> None:
    """It would say that it has the leader's records, and keep what the leader has not."""
    log = open_log(tmp_path / "t-0")
    append(log, batch(), epoch=2)
    log.follow(5)
    assert log.latest_epoch == 2
    log.close()
    again = open_log(tmp_path / "t-0", clean_shutdown=True, recovery_point=3)
    assert (again.latest_epoch, again.leader_epoch) == (2, 2)


def test_an_epoch_without_a_batch_is_cut_off_too(tmp_path: Path) -> None:
    """Noted for an append that failed: a leader that knows nothing of it would say so for ever."""
    log = open_log(tmp_path / "t-0")
    append(log, batch(), epoch=2)
    log._appender.epochs.assign(4, log.log_end_offset)
    assert log.latest_epoch == 4
    log.truncate_to(3)
    assert (log.latest_epoch, log.log_end_offset) == (2, 3)


def test_a_lone_brokers_appends_are_of_its_logs_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, batch(), epoch=0)
    end(log, 7, commit=True)
