"""Transactions told again from files: openings, damage, retention, rounds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.base.secret import Secret
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import HEADER_SIZE, LENGTH, LOG_OVERHEAD
from lapse.log.loader import settle_txn_indexes
from lapse.log.partition_log import PartitionLog
from lapse.log.producers import Producers
from lapse.log.reader import aborted_transactions, read_facts
from lapse.log.replay import snapshot_offsets
from lapse.log.segment import SNAPSHOT, TXN_INDEX, segment_path
from lapse.log.txn_index import AbortedTxn, encode_entries, parse_entries
from lapse.records.batch import as_array
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import CrashFs
from tests.support.log.logs import (
    NOW,
    TP,
    append,
    batch,
    check_sound,
    config,
    data,
    end,
    open_log,
    refusal,
    rewrite,
)


def spread_over_segments(path: Path) -> tuple[PartitionLog, list[AbortedTxn]]:
    """Transactions that go over rolls; an open one at the end."""
    log = open_log(path)
    sequences = dict.fromkeys((7, 8, 9), 0)
    for n in range(60):
        producer = (7, 8, 9)[n % 3]
        data(log, producer, sequences[producer], size=60)
        sequences[producer] += 2
        if n % 5 == 4:
            end(log, producer, commit=n % 2 == 0, coordinator=n)
    assert len(log.segments) > 4
    return log, log.aborted_transactions(0, log.log_end_offset)


def indexes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.glob("*.txnindex"))}


def test_each_segment_holds_the_aborts_whose_markers_it_holds(tmp_path: Path) -> None:
    log, aborted = spread_over_segments(tmp_path)
    assert len(aborted) == 6
    log.flush()
    found = []
    for segment in log.segments:
        path = segment.path(TXN_INDEX)
        if path.exists():
            entries = parse_entries(path.read_bytes(), path.name)
            assert entries
            assert all(segment.base_offset <= e.last_offset < segment.end_offset for e in entries)
            found += entries
    assert found == aborted
    assert len(indexes(tmp_path)) < len(log.segments)


def test_the_snapshot_of_an_earlier_end_goes_once_it_was_taken_up(tmp_path: Path) -> None:
    """It lies within a segment, and is all there is where the one of the last end is lost."""
    log = open_log(tmp_path)
    data(log, 7, 0)
    log.close()
    early = segment_path(tmp_path, log.log_end_offset, SNAPSHOT)
    kept = early.read_bytes()
    log = open_log(tmp_path, clean_shutdown=True)
    data(log, 7, 2)
    log.close()
    segment_path(tmp_path, log.log_end_offset, SNAPSHOT).unlink()
    early.write_bytes(kept)
    again = open_log(tmp_path, clean_shutdown=True)
    assert snapshot_offsets(tmp_path) == [again.log_end_offset]
    assert again.facts().producers == log.facts().producers


@pytest.mark.parametrize("clean", [False, True])
def test_opening_again_knows_the_same(tmp_path: Path, clean: bool) -> None:
    log, aborted = spread_over_segments(tmp_path)
    before = log.facts()
    if clean:
        log.close()
    files = indexes(tmp_path)
    again = open_log(tmp_path, clean_shutdown=clean)
    check_sound(again)
    assert again.last_stable_offset == before.last_stable_offset < before.high_watermark
    assert again.facts().producers == before.producers
    assert again.aborted_transactions(0, again.log_end_offset) == aborted
    assert aborted_transactions(tmp_path, 0, again.log_end_offset) == aborted
    assert read_facts(tmp_path, TP).last_stable_offset == before.last_stable_offset
    if clean:
        assert indexes(tmp_path) == files
    end(again, 7, commit=False, coordinator=99)  # the coordinator's epoch is known again
    assert refusal(lambda: end(again, 7, commit=False, coordinator=98)) is (
        ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )


@pytest.mark.parametrize("damage", ["missing", "half an entry", "version", "order", "empty"])
@pytest.mark.parametrize("clean", [False, True])
def test_indexes_are_made_anew(tmp_path: Path, damage: str, clean: bool) -> None:
    log, aborted = spread_over_segments(tmp_path)
    log.close()
    whole = indexes(tmp_path)
    snapshots = {f.name: f.read_bytes() for f in tmp_path.glob("*.snapshot")}
    assert len(whole) > 2
    for name in whole:
        path = tmp_path / name
        entries = parse_entries(path.read_bytes(), name)
        if damage == "missing":
            path.unlink()
        elif damage == "half an entry":
            path.write_bytes(path.read_bytes()[:-3])
        elif damage == "version":
            path.write_bytes(b"\0\7" + path.read_bytes()[2:])
        elif damage == "order":
            path.write_bytes(encode_entries([*entries, entries[0]]))
        else:
            path.write_bytes(b"")
    recovery_point = log.segments[3].base_offset  # some are below it
    again = open_log(tmp_path, clean_shutdown=clean, recovery_point=recovery_point)
    assert again.aborted_transactions(0, again.log_end_offset) == aborted
    assert indexes(tmp_path) == whole
    if clean:
        assert {f.name: f.read_bytes() for f in tmp_path.glob("*.snapshot")} == snapshots


def test_aborts_that_an_index_has_lost_may_stay_lost(tmp_path: Path) -> None:
    """For `--kafka-exact`: Kafka makes an index anew that it cannot read, and no other."""
    log, aborted = spread_over_segments(tmp_path)
    log.close()
    first, second, *_ = whole = indexes(tmp_path)
    (tmp_path / first).unlink()
    (tmp_path / second).write_bytes(whole[second][:-3])
    again = open_log(tmp_path, clean_shutdown=True, heals_txn_indexes=False)
    lost = parse_entries(whole[first], first)
    assert again.aborted_transactions(0, again.log_end_offset) == aborted[len(lost) :]
    assert indexes(tmp_path) == {name: data for name, data in whole.items() if name != first}


def test_stale_indexes_of_recovered_segments_are_not_believed(tmp_path: Path) -> None:
    log, aborted = spread_over_segments(tmp_path)
    log.close()
    whole = indexes(tmp_path)
    for name in whole:
        entries = parse_entries(whole[name], name)
        stale = [replace(entry, last_stable_offset=entry.first_offset) for entry in entries]
        (tmp_path / name).write_bytes(encode_entries(stale))
    again = open_log(tmp_path)
    assert again.aborted_transactions(0, again.log_end_offset) == aborted
    assert indexes(tmp_path) == whole


@pytest.mark.parametrize("clean", [False, True])
def test_an_index_left_over_where_nothing_was_aborted_goes(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    data(log, 8, 0)
    end(log, 8, commit=True)
    log.close()
    (tmp_path / f"{0:020d}.txnindex").write_bytes(encode_entries([AbortedTxn(8, 0, 2, 3)]))
    again = open_log(tmp_path, clean_shutdown=clean)
    assert again.aborted_transactions(0, 3) == []
    assert indexes(tmp_path) == {}


def test_looking_at_a_live_log_sees_what_is_not_written_out(tmp_path: Path) -> None:
    log, aborted = spread_over_segments(tmp_path)
    assert log.segments[-1].may_have_aborts
    assert not log.segments[-1].path(TXN_INDEX).exists()
    last = log.log_end_offset
    assert aborted_transactions(tmp_path, 0, last) == aborted
    assert aborted_transactions(tmp_path, last - 30, last) == log.aborted_transactions(
        last - 30, last
    )


@pytest.mark.parametrize(("synced", "at_6"), [(0, [8]), (3, [7, 8])])
def test_w7_producers_expire_where_kafka_takes_up_a_snapshot(
    tmp_path: Path, synced: int, at_6: list[int]
) -> None:
    """At every recovered segment but the first one without a snapshot below it."""
    log = open_log(tmp_path)
    day = 86_400_000
    for producer, age in ((7, day), (8, 0), (9, 0)):
        made = batch(
            producer_id=producer, producer_epoch=0, base_sequence=0, timestamp=NOW - age - 5
        )
        append(log, made)
        log.roll(NOW)
    for snapshot in tmp_path.glob("*.snapshot"):
        snapshot.unlink()
    again = open_log(tmp_path, believed_ms=NOW, recovery_point=synced)
    assert [p.producer_id for p in again.facts().producers] == [8, 9]
    held = {
        int(file.stem): [p.producer_id for p in Producers.from_snapshot(file.read_bytes(), "s")]
        for file in tmp_path.glob("*.snapshot")
    }
    assert held == {3: [7], 6: at_6, 9: [8, 9]}


def test_without_snapshots_they_are_made_from_the_beginning(tmp_path: Path) -> None:
    log, aborted = spread_over_segments(tmp_path)
    before = log.facts().producers
    log.close()
    whole = indexes(tmp_path)
    for file in [*tmp_path.glob("*.txnindex"), *tmp_path.glob("*.snapshot")]:
        file.unlink()
    again = open_log(tmp_path, clean_shutdown=True)
    assert again.aborted_transactions(0, again.log_end_offset) == aborted
    assert again.facts().producers == before
    assert indexes(tmp_path) == whole
    bases = [segment.base_offset for segment in again.segments]
    kept = sorted(int(f.stem) for f in tmp_path.glob("*.snapshot"))
    assert kept == [*bases[-2:], again.log_end_offset]  # as Kafka leaves them


def test_a_cut_off_marker_leaves_its_transaction_open(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data(log, 8, 0)
    end(log, 8, commit=False)
    log.flush()
    assert len(indexes(tmp_path)) == 1
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    again = open_log(tmp_path)
    assert (again.log_end_offset, again.last_stable_offset) == (2, 0)
    assert again.aborted_transactions(0, 2) == []
    assert indexes(tmp_path) == {}
    end(again, 8, commit=True)
    assert again.last_stable_offset == 3


def test_beginning_empty_past_the_end_forgets_open_transactions(tmp_path: Path) -> None:
    """D-16: their markers will never come, and nobody could read on for ever."""
    log = open_log(tmp_path)
    data(log, 8, 0)
    log.close()
    again = open_log(tmp_path, clean_shutdown=True, log_start_offset=50)
    assert (again.log_start_offset, again.last_stable_offset) == (50, 50)
    append(again, batch())
    assert again.last_stable_offset == 53


def test_retention_takes_the_index_along_and_readers_keep_it(tmp_path: Path) -> None:
    log, aborted = spread_over_segments(tmp_path)
    reader = log.segments
    gone = [s.base_offset for s in reader[:3]]
    log.delete_segments(gone)
    for base_offset in gone:
        name = f"{base_offset:020d}.txnindex"
        assert not (tmp_path / name).exists()
    log.sweep_deleted(1 << 60)
    assert not list(tmp_path.glob("*.deleted"))
    held = [e for s in reader for e in s.files().txn_index.entries()]
    assert held == aborted
    start = log.log_start_offset
    assert log.aborted_transactions(start, log.log_end_offset) == [
        e for e in aborted if e.last_offset >= start
    ]


def without_summaries(
    path: Path, damage: bytes | None
) -> tuple[list[AbortedTxn], dict[str, bytes]]:
    """A log that was closed, its summaries lost, and its transaction indexes damaged."""
    log, aborted = spread_over_segments(path)
    log.close()
    whole = indexes(path)
    for lost in (path / ".lapse").glob("*.summary"):
        lost.unlink()
    for name in whole:
        if damage is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(damage)
    return aborted, whole


@pytest.mark.parametrize("damage", [None, b""])
def test_aborts_are_known_while_summaries_are_estimates(
    tmp_path: Path, damage: bytes | None
) -> None:
    """Nobody has read the markers then, and an index that has lost its entries looks right."""
    aborted, whole = without_summaries(tmp_path, damage)
    again = open_log(tmp_path, clean_shutdown=True)
    assert not any(s.summary.is_complete for s in again.segments)
    assert not again.state.is_recent(again.log_end_offset), "an event loop must not wait for that"
    assert again.aborted_transactions(0, again.log_end_offset) == aborted
    assert again.state.is_recent(again.log_end_offset)
    assert indexes(tmp_path) == whole


def test_an_index_that_cannot_be_made_anew_is_not_believed(tmp_path: Path) -> None:
    aborted, _ = without_summaries(tmp_path, b"")

    class Full(RealFs):
        is_full = False

        def write_file(self, path: Path, data: Buffer | Secret) -> None:
            if self.is_full and path.suffix == TXN_INDEX:
                raise StorageError(f"writing {path}: no space left on device")
            super().write_file(path, data)

    fs = Full()
    again = open_log(tmp_path, fs=fs, clean_shutdown=True)
    fs.is_full = True
    for _ in range(2):
        with pytest.raises(StorageError):
            again.aborted_transactions(0, again.log_end_offset)
    fs.is_full = False
    assert again.aborted_transactions(0, again.log_end_offset) == aborted


def test_a_round_brings_the_new_index_or_none(tmp_path: Path) -> None:
    """F-10, W-2: what the new segment's index holds is what counts from the swap on."""
    log, aborted = spread_over_segments(tmp_path)
    log.close()
    as_is = {"clean_shutdown": True, "heals_txn_indexes": False}  # the index lacks an entry
    log = open_log(tmp_path, **as_is)
    sealed = [s for s in log.segments if not s.active]
    group, attempt = sealed[:3], tmp_path / ".lapse" / "1" / "1"
    rewritten = rewrite(log, group, lambda _: True, attempt)
    [new] = rewritten.replacement.new
    kept = [e for e in aborted if e.last_offset < group[-1].end_offset][1:]
    assert kept
    path = attempt / "new-txnindex"
    path.write_bytes(encode_entries(kept))
    new.files[TXN_INDEX] = path  # type: ignore[index]
    log.replace_segments(rewritten.replacement, log.generation)
    found = log.aborted_transactions(0, log.log_end_offset)
    assert found == [*kept, *(e for e in aborted if e.last_offset >= group[-1].end_offset)]
    old = [e for s in group if s.may_have_aborts for e in s.files().txn_index.entries()]
    assert old == [e for e in aborted if e.last_offset < group[-1].end_offset]
    log.close()
    again = open_log(tmp_path, **as_is)
    assert again.aborted_transactions(0, again.log_end_offset) == found


def test_an_index_with_other_bytes_anywhere_is_noticed(tmp_path: Path) -> None:
    """Eight of them: in a producer's id, which is nobody's then, or where a search may end."""
    log, aborted = spread_over_segments(tmp_path)
    end_offset = log.log_end_offset
    log.close()
    draw = random.Random(7)
    for path in sorted(tmp_path.glob("*.txnindex")):
        sound = path.read_bytes()
        for at in range(len(sound) - 7):
            path.write_bytes(sound[:at] + draw.randbytes(8) + sound[at + 8 :])
            seen = aborted_transactions(tmp_path, 0, end_offset)  # by who only looks
            assert [a for a in aborted if a not in seen] == [], (path.name, at)
            again = open_log(tmp_path, clean_shutdown=True)
            for start in range(0, end_offset, 7):
                found = again.aborted_transactions(start, start + 1)
                wanted = [e for e in aborted if e.first_offset <= start <= e.last_offset]
                assert [a for a in wanted if a not in found] == [], (path.name, at)
            again.close()


def test_an_entry_of_a_producer_who_ends_nothing_in_the_segment_is_noticed(tmp_path: Path) -> None:
    """Also where the transaction's data is in another segment than its marker."""
    log = open_log(tmp_path)
    data(log, 7, 0)
    log.roll(NOW)
    end(log, 7, commit=False, coordinator=1)
    [aborted] = log.aborted_transactions(0, log.log_end_offset)
    log.roll(NOW)
    log.close()
    path = segment_path(tmp_path, log.segments[1].base_offset, TXN_INDEX)
    path.write_bytes(encode_entries([replace(aborted, producer_id=1 << 40)]))
    again = open_log(tmp_path, clean_shutdown=True)
    assert again.aborted_transactions(0, again.log_end_offset) == [aborted]


def test_an_index_that_lost_some_of_its_entries_gets_them_back(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(internal_segment_bytes=1 << 20))
    for producer in (7, 8, 9):
        data(log, producer, 0)
    for producer in (8, 7, 9):
        end(log, producer, commit=False, coordinator=1)
    aborted = log.aborted_transactions(0, log.log_end_offset)
    assert len(aborted) == 3
    log.roll(NOW)
    log.close()
    path = tmp_path / f"{0:020d}.txnindex"
    for cut in (34, 68):
        path.write_bytes(path.read_bytes()[:cut])
        again = open_log(tmp_path, clean_shutdown=True)
        assert again.aborted_transactions(0, again.log_end_offset) == aborted
        again.close()


def test_settling_leaves_sound_indexes_alone(tmp_path: Path) -> None:
    log, _ = spread_over_segments(tmp_path)
    log.flush()
    fs = CrashFs(RealFs(), None)
    settle_txn_indexes(fs, log.segments, {})
    assert fs.operations == 0


def test_nobody_is_forgotten_while_the_clock_is_not_believed(tmp_path: Path) -> None:
    """ADR-11: opened under a clock that jumped a year ahead; a roll must not make it final."""
    log = open_log(tmp_path)
    append(log, batch(producer_id=7, producer_epoch=0, base_sequence=0))
    log.roll(NOW)
    log.close()
    jumped = ManualClock(NOW + 365 * 86_400_000)
    log = open_log(tmp_path, clean_shutdown=True, clock=jumped)
    append(log, batch(), now_ms=jumped.now_ms())
    log.roll(jumped.now_ms())
    log.close()
    for believed_ms, known in ((NOW + 1000, [7]), (jumped.now_ms(), [])):
        again = open_log(tmp_path, clean_shutdown=True, believed_ms=believed_ms)
        assert [p.producer_id for p in again.facts().producers] == known
        again.close()


def bare_header(**spec: object) -> bytes:
    """What is left of a transactional batch of two records."""
    made = bytearray(batch(records=2, transactional=True, **spec)[:HEADER_SIZE])  # type: ignore[arg-type]
    made[LENGTH : LENGTH + 4] = (HEADER_SIZE - LOG_OVERHEAD).to_bytes(4, "big")
    made[HEADER_SIZE - 4 :] = bytes(4)
    finish_batch(as_array(made), 0, len(made))
    return bytes(made)


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_a_bare_header_opens_no_transaction(with_snapshot: bool, tmp_path: Path) -> None:
    """X-7: a round may leave a producer's last batch as a header, and its marker not."""
    log = open_log(tmp_path)
    log.append_raw(bare_header(producer_id=7, producer_epoch=2, base_sequence=4))
    append(log, batch())
    assert log.last_stable_offset == log.log_end_offset == 5
    if with_snapshot:
        log.roll(NOW)
    again = open_log(tmp_path)
    assert again.last_stable_offset == again.log_end_offset == 5
    # W-7: its sequence and epoch count
    (known,) = again.facts().producers
    assert (known.producer_epoch, known.last_data_offset) == (2, 1)
    assert refusal(lambda: data(again, 7, 9, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert data(again, 7, 6, epoch=2) == 5
    assert again.last_stable_offset == 5  # this one does


@pytest.mark.parametrize("ended", [True, False])
def test_a_snapshot_from_before_an_end_that_rounds_took_holds_nothing(
    ended: bool, tmp_path: Path
) -> None:
    """Nobody would ever end it again: it would hold readers and rounds for ever."""
    log = open_log(tmp_path)
    append(log, batch())
    data(log, 7, 0)
    data(log, 7, 2)
    log.roll(NOW)
    open_at = log.log_end_offset
    if ended:
        end(log, 7, commit=False)
    append(log, batch())
    log.roll(NOW)
    append(log, batch())
    log.flush()
    if ended:
        for n, segment in enumerate(log.segments[:2]):
            attempt = tmp_path / ".lapse" / str(n) / "1"
            rewritten = rewrite(log, [segment], lambda row: row.producer_id < 0, attempt)
            log.replace_segments(rewritten.replacement, log.generation)
    for path in tmp_path.glob("*.snapshot"):  # a crash may leave just the one that was synced
        if int(path.stem) > open_at:
            path.unlink()
    stable = log.log_end_offset if ended else 3
    assert read_facts(tmp_path, TP).last_stable_offset == stable
    again = open_log(tmp_path, recovery_point=log.log_end_offset)
    assert again.last_stable_offset == stable


def test_a_snapshot_holds_every_transaction_that_is_open(tmp_path: Path) -> None:
    """Or readers would be given records that may be aborted yet, and rounds would clean them."""
    log = open_log(tmp_path)
    append(log, batch())
    first = data(log, 7, 0)
    log.roll(NOW)
    data(log, 8, 0)
    log.roll(NOW)
    taken = log.log_end_offset
    append(log, batch())
    log.flush()
    for path in tmp_path.glob("*.snapshot"):  # a crash may leave just the one that was synced
        if int(path.stem) > taken:
            path.unlink()
    assert taken in snapshot_offsets(tmp_path)
    again = open_log(tmp_path, recovery_point=log.log_end_offset)
    assert again.last_stable_offset == first
    end(again, 7, commit=True)
    assert again.last_stable_offset == 5
    end(again, 8, commit=True)
    assert again.last_stable_offset == again.log_end_offset
