"""The watermark of a log with other replicas: as checkpointed, and what is decided below it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import CONTROL
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from tests.support.log.logs import (
    TP,
    append,
    batch,
    batches_of,
    config,
    data,
    end,
    env,
    open_log,
)


def fill(log: PartitionLog) -> None:
    """Transactions one within the other, some of them over several segments; one stays open."""
    for n in range(5):
        data(log, 1, 2 * n)
        append(log, batch(records=4, size=200))
        data(log, 2, 2 * n)
        end(log, 1, commit=n % 2 == 0)
        append(log, batch(records=4, size=200))
        if n == 2:
            end(log, 2, commit=False)
    data(log, 3, 0)


def stable_offsets(log: PartitionLog) -> dict[int, int]:
    """The last stable offset for each high watermark, lower ones last: a leader sets none back."""
    found = {}
    for offset in range(log.log_end_offset + 1):
        log.high_watermark = offset
        found[offset] = log.last_stable_offset
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_what_is_decided_below_the_watermark_is_known_when_a_log_is_opened(
    tmp_path: Path, clean: bool
) -> None:
    """A marker above it may go with its replica, so its transaction is open to readers (Y-3)."""
    path = tmp_path / "log"
    live = open_log(path, high_watermark=0)
    fill(live)
    assert len(live.segments) > 3
    live.close(clean=clean)
    known = {}
    for offset in range(live.log_end_offset + 1):
        again = tmp_path / "again"
        shutil.copytree(path, again)
        log = open_log(again, clean_shutdown=clean, high_watermark=offset)
        assert log.high_watermark == offset
        known[offset] = log.last_stable_offset
        shutil.rmtree(again)
    assert known == expected(batches_of(live), live.log_end_offset)
    assert len(set(known.values())) > 3


@pytest.mark.parametrize("has_copies", [True, False])
def test_of_two_batches_that_overlap_the_damaged_one_goes_where_others_have_it(
    tmp_path: Path, has_copies: bool
) -> None:
    """By its gap it is the first one; where nobody else has it, it stays."""
    path = tmp_path / "log"
    live = open_log(path, config(), high_watermark=0 if has_copies else None)
    for _ in range(4):
        append(live, batch())
    live.close(clean=False)
    whole = bytearray(live.segments[0].path().read_bytes())
    whole[len(batch()) + 5] ^= 1  # offset 3 is 65539
    live.segments[0].path().write_bytes(whole)
    mark = 0 if has_copies else None
    log = open_log(path, config(), clean_shutdown=False, high_watermark=mark)
    assert list(batches_of(log)) == ([0] if has_copies else [0, 65539])


def expected(batches: dict[int, bytes], log_end: int) -> dict[int, int]:
    """Slow and obvious: the first transaction whose marker is not below the watermark."""
    spans: list[tuple[int, int]] = []
    begun: dict[int, int] = {}
    for at, data_ in batches.items():
        attributes = int.from_bytes(data_[21:23], "big")
        producer = int.from_bytes(data_[43:51], "big", signed=True)
        if attributes & CONTROL:
            spans.append((begun.pop(producer), at))
        elif producer >= 0:
            begun.setdefault(producer, at)
    spans += [(first, 1 << 62) for first in begun.values()]
    return {
        offset: min([first for first, marker in spans if first < offset <= marker], default=offset)
        for offset in range(log_end + 1)
    }


def test_it_moves_up_as_when_it_was_never_closed(tmp_path: Path) -> None:
    live = open_log(tmp_path, high_watermark=0)
    fill(live)
    wanted = expected(batches_of(live), live.log_end_offset)
    live.close()
    log = open_log(tmp_path, clean_shutdown=True, high_watermark=0)
    assert stable_offsets(log) == wanted


def test_a_log_that_is_cut_back_knows_what_is_left_undecided(tmp_path: Path) -> None:
    whole = open_log(tmp_path / "whole", high_watermark=0)
    fill(whole)
    batches = batches_of(whole)
    for n, cut in enumerate(sorted(batches)[4:]):
        log = open_log(tmp_path / str(n), high_watermark=0)
        fill(log)
        log.truncate_to(cut)
        left = {offset: data_ for offset, data_ in batches.items() if offset < cut}
        assert (batches_of(log), log.log_end_offset) == (left, cut)
        assert stable_offsets(log) == expected(left, cut)


def test_readers_rounds_and_lookups_end_at_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, high_watermark=0)
    for _ in range(4):
        append(log, batch(records=4, size=400))
    assert (log.high_watermark, log.last_stable_offset, log.log_end_offset) == (0, 0, 16)
    facts = log.facts()
    assert (facts.high_watermark, facts.last_stable_offset) == (0, 0)
    log.high_watermark = 9
    assert log.facts().high_watermark == 9


def test_a_log_gets_other_replicas_and_loses_them(tmp_path: Path) -> None:
    """KIP-455, while it is open: what was committed stays so, and alone all of it is."""
    log = open_log(tmp_path)
    append(log, batch(records=4))
    log.set_replicated(replicated=True)
    append(log, batch(records=4))
    assert (log.high_watermark, log.log_end_offset) == (4, 8)
    log.set_replicated(replicated=True)
    assert log.high_watermark == 4
    log.set_replicated(replicated=False)
    append(log, batch(records=1))
    assert log.high_watermark == log.log_end_offset == 9


# --- a directory ----------------------------------------------------------------------------------


def in_directory(path: Path, use: Callable[[LogDirectory], object]) -> None:
    directory = LogDirectory.open(path, env())
    use(directory)
    directory.close()


def test_a_directory_reads_it_back(tmp_path: Path) -> None:
    alone = TopicPartition("alone", 0)

    def write(directory: LogDirectory) -> None:
        for partition in (TP, alone):
            log = directory.create_log(partition, config(), replicated=partition == TP)
            append(log, batch(records=6))
        directory.logs[TP].high_watermark = 4

    def look(directory: LogDirectory) -> None:
        assert directory.open_log(TP, config(), replicated=True).high_watermark == 4
        assert directory.open_log(alone, config()).high_watermark == 6

    in_directory(tmp_path, write)
    in_directory(tmp_path, look)
    # One that was never checkpointed is unknown: nothing is known to be on other replicas.
    (tmp_path / checkpoints.HIGH_WATERMARK).unlink()
    in_directory(
        tmp_path, lambda d: check(d.open_log(TP, config(), replicated=True).high_watermark, 0)
    )


def check(found: int, wanted: int) -> None:
    assert found == wanted


def test_another_topic_of_the_same_name_begins_without_one(tmp_path: Path) -> None:
    checkpoints.write_offsets(RealFs(), tmp_path / checkpoints.HIGH_WATERMARK, {TP: 5})

    def begin(directory: LogDirectory) -> None:  # its folder was removed while no broker ran
        log = directory.create_log(TP, config(), replicated=True)
        append(log, batch(records=6))
        assert log.high_watermark == 0

    def use(directory: LogDirectory) -> None:
        log = directory.open_log(TP, config(), replicated=True)
        append(log, batch(records=6))
        log.high_watermark = 6
        directory.checkpoint()
        directory.delete_log(TP)
        log = directory.create_log(TP, config(), replicated=True)
        append(log, batch(records=6))
        assert log.high_watermark == 0

    in_directory(tmp_path, begin)
    in_directory(tmp_path, use)


def test_a_log_is_cut_back_between_commits_only(tmp_path: Path) -> None:
    """Else a commit that began before would move a checkpoint past the new end."""
    held = []

    class Watched(RealFs):
        def truncate(self, path: Path, size: int) -> None:
            held.append(log.committing.locked())
            super().truncate(path, size)

    directory = LogDirectory.open(tmp_path, env(Watched()))
    log = directory.create_log(TP, config())
    append(log, batch(records=6))
    append(log, batch(records=6))
    directory.truncate_log(directory.logs[TP], 6)
    directory.restart_log(directory.logs[TP], 3)
    assert held
    assert all(held)
    assert not log.committing.locked()
    directory.close()
