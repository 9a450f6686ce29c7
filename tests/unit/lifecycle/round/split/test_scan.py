"""What a scan leaves of a segment, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lapse.lifecycle.round.receipt import BadSpot
from lapse.lifecycle.round.split.edges import Edge
from lapse.lifecycle.round.split.parts import PartsReader
from lapse.lifecycle.round.split.requests import Scanned, Stage, folder_of, runs_file
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.reference import split_rounds
from tests.support.lifecycle.round.split.splits import (
    NOW,
    SEED,
    SPLIT,
    Driver,
    data,
    marker,
    planned,
)

OTHER = 2


def numbers(directory: Path, scanned: Scanned, attempt_id: str, driver: Driver) -> list[list[int]]:
    """Of the records in each range."""
    assert scanned.runs is not None
    path = folder_of(driver.plan, attempt_id) / runs_file(scanned.index)
    reader = PartsReader(path, scanned.runs, 0, scanned.runs.keys)
    return [
        [int(n) & 0xFFFFFFFF for part in reader.parts(r) for n in part.view("<u8")[1::2]]
        for r in range(scanned.runs.keys)
    ]


def test_every_record_with_a_key_is_in_a_run_chunk_after_chunk(tmp_path: Path) -> None:
    batches = [data(4 * n, *((b"%d" % (n % 3 * 4 + k), b"v") for k in range(4))) for n in range(5)]
    driver = Driver(planned(tmp_path, [(0, b"".join(batches))], 20, dirty=6))
    [answer] = driver.run(driver.until(Stage.SCAN))
    scanned = answer.done
    assert (scanned.index, scanned.records, scanned.mapped_from) == (0, 20, 6)
    assert (scanned.edges, scanned.markers) == ((), False)
    found = numbers(tmp_path, scanned, answer.attempt_id, driver)
    assert sorted(n for some in found for n in some) == list(range(20))
    assert all(some == sorted(some) for some in found)
    of_range = {n: r for r, some in enumerate(found) for n in some}
    assert all(of_range[n] == of_range[n + 12] for n in range(8))  # the same keys
    assert answer.bytes_read == len(b"".join(batches))


def test_a_segment_of_transactions_first_says_what_crosses_its_borders(tmp_path: Path) -> None:
    segments = [
        (0, data(0, (b"a", b"1"), producer=7)),
        (1, data(1, (b"a", b"2"), producer=8) + marker(2, 7, commit=False)),
        (3, data(3, (b"a", b"3"))),
    ]
    driver = Driver(planned(tmp_path, segments, 4, outcomes=((8, True),)))
    answers = driver.run(driver.until(Stage.SCAN))
    assert [a.done.runs is None for a in answers] == [True, True, False]
    assert [a.done.edges for a in answers] == [
        (Edge(7, OTHER, 0),), (Edge(7, 0, -1), Edge(8, OTHER, 1)), ()
    ]  # fmt: skip
    assert [a.done.markers for a in answers] == [False, True, False]
    job = driver.until(Stage.SCAN)
    assert [(r.index, r.outcomes) for r in job.requests] == [(0, ((7, False),)), (1, ((8, True),))]
    first, second = driver.run(job)
    assert first.done.mapped_from == 1  # aborted: no map hears of it
    assert not any(numbers(tmp_path, first.done, first.attempt_id, driver))
    assert sorted(numbers(tmp_path, second.done, second.attempt_id, driver)) == [[], [], [0]]


def test_what_a_scan_leaves_of_a_record_is_two_bits(tmp_path: Path) -> None:
    """Whether it is superseded and whether it has a key; and a bit a batch."""
    content = data(0, *((b"%d" % n, b"v") for n in range(4000)))
    driver = Driver(planned(tmp_path, [(0, content)], 4000))
    [answer] = driver.run(driver.until(Stage.SCAN))
    assert 1000 <= answer.done.bits.size <= 1020


def test_damage_in_data_of_a_transaction_that_nobody_knows_the_end_of(tmp_path: Path) -> None:
    """No map hears of it, and it stays; yet a header with another count must not be believed."""
    first = data(0, (b"a", b"1"))
    bad = bytearray(data(1, (b"b", b"1"), producer=7))
    bad[-2] ^= 1
    driver = Driver(planned(tmp_path, [(0, first + bad)], 2))
    driver.run(driver.until(Stage.SCAN))
    [answer] = driver.run(driver.until(Stage.SCAN))
    assert answer.bad == BadSpot(0, 1, len(first), "checksum does not match")


def test_a_batch_in_disorder_around_the_first_dirty_offset(tmp_path: Path) -> None:
    """What comes behind the first dirty record and is clean, no plan maps or looks up."""
    pairs = [(b"a", 5), (b"b", 0), (b"b", 6), (b"a", 7), (b"a", 1)]
    records = [NewRecord(key, b"v", NOW, offset_delta=delta) for key, delta in pairs]
    content = build_batch(records, BatchSpec(0, last_offset_delta=9))
    plan = planned(tmp_path, [(0, content)], 10, dirty=3, split=None)
    found = split_rounds.compare(plan, SPLIT, seed=5)
    assert [group.removed for group in found.groups] == [{"superseded": 1}]


@pytest.mark.parametrize("at", [61, 68])
def test_what_cannot_be_read_is_named(tmp_path: Path, at: int) -> None:
    good = data(0, (b"a", b"1"))
    second = bytearray(data(1, (b"b", b"1")))
    second[at] ^= 1
    driver = Driver(planned(tmp_path, [(0, good + bytes(second))], 2))
    [answer] = driver.run(driver.until(Stage.SCAN))
    assert answer.done is None
    assert answer.bad == BadSpot(0, 1, len(good), "checksum does not match")
    assert str(answer.error).startswith("t-0: ")
    driver.until(None)
    assert driver.result is not None
    assert (driver.result.bad, driver.result.error) == (answer.bad, answer.error)


def test_a_batch_that_reaches_into_the_next_segment(tmp_path: Path) -> None:
    segments = [(0, data(0, (b"a", b"1"), (b"b", b"1"))), (1, b"")]
    driver = Driver(planned(tmp_path, segments, 2))
    answer, _ = driver.run(driver.until(Stage.SCAN))
    assert answer.bad is not None
    assert answer.bad.reason == "offset 1 is in the segment of 1 on"


def test_neither_keys_nor_the_seed_are_left_anywhere(tmp_path: Path) -> None:
    keys = [b"a-key-of-somebody-%d" % n for n in range(9)]
    driver = Driver(planned(tmp_path, [(0, data(0, *((key, b"v") for key in keys)))], 9))
    job = driver.until(Stage.SCAN)
    [answer] = driver.run(job)
    for told in (repr(job.requests[0]), msgspec.json.encode(answer).decode()):
        assert not any(str(abs(word)) in told for word in SEED)
    words = [n.to_bytes(8, "little", signed=True) for n in SEED]
    for path in folder_of(driver.plan, answer.attempt_id).iterdir():
        content = path.read_bytes()
        assert not any(text in content for text in [*words, *keys, b"somebody"]), path


def test_an_attempt_at_the_same_request_writes_the_same(tmp_path: Path) -> None:
    driver = Driver(planned(tmp_path, [(0, data(0, (b"a", b"1"), (b"b", b"2")))], 2))
    [request] = driver.until(Stage.SCAN).requests
    one, two = (driver.ask(Stage.SCAN, request, name) for name in ("one", "two"))
    assert replace(one.done, bits=None) == replace(two.done, bits=None)
    for name in ("0-runs", "0-bits"):
        contents = {(folder_of(driver.plan, a.attempt_id) / name).read_bytes() for a in (one, two)}
        assert len(contents) == 1
