"""One attempt at a plan: its receipt, its files, and what it says when a log is not sound."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.kernels import gzip_library, lz4_library, zstd_library
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.engine import Asleep, EngineWanted, failed, run_plan
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import (
    GUESS_SECONDS,
    PROGRESS_BYTES,
    Progress,
    ProgressFile,
    read_progress,
    work_bytes,
)
from lapse.lifecycle.round.receipt import BadSpot, Receipt, attempt_dir
from lapse.lifecycle.round.run import receipts_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.testing.clock import ManualClock
from tests.reference import cleaning, rounds
from tests.reference.crc32c import crc32c

FS = RealFs()
RETENTION = 1000
NOW = 5_000_000


def two_values(codec: Codec = Codec.NONE) -> bytes:
    return build_batch(
        [NewRecord(b"a", b"old", NOW), NewRecord(b"b", b"x", NOW), NewRecord(b"a", b"new", NOW)],
        BatchSpec(codec=codec),
    )


def planned(directory: Path, *segments: bytes, dirty: int = 0) -> RoundPlan:
    """Segments of ten offsets each."""
    bases = [10 * n for n in range(len(segments))]
    given = cleaning.Round(
        False, dirty, 10 * len(segments), tuple(zip(bases, segments, strict=True)), frozenset(),
        -1, NOW + RETENTION, NOW, 1000,
    )  # fmt: skip
    for base, data in given.segments:
        (directory / f"{base:020d}.log").write_bytes(data)
    return rounds.plan_of(given, directory, 1 << 20)


def run(plan: RoundPlan) -> Receipt:
    return run_plan(plan, "a1", FS, ManualClock())


def test_a_receipt(tmp_path: Path) -> None:
    plan = planned(tmp_path, two_values())
    receipt = run(plan)
    assert receipt.error is None
    assert (receipt.round_id, receipt.attempt_id, receipt.name) == ("r1", "a1", "t-0")
    assert (receipt.generation, receipt.now_ms, receipt.horizon_ms) == (
        plan.generation, plan.now_ms, plan.horizon_ms,
    )  # fmt: skip
    assert (receipt.end_offset, receipt.map_entries) == (10, 2)
    assert (receipt.records_read, receipt.records_written) == (3, 2)
    assert receipt.groups[0].removed == {"superseded": 1}
    assert receipt.bytes_read == 2 * len(two_values())
    folder = attempt_dir(tmp_path, "r1", "a1")
    assert str(folder.relative_to(tmp_path)) == ".lapse/r1/a1"
    written = {p.name for p in folder.iterdir()}
    assert written == {f"{0:020d}-{kind}" for kind in ("records", "offsets", "times")}
    assert receipt.bytes_written == (folder / f"{0:020d}-records").stat().st_size


def test_nothing_of_an_attempt_could_be_taken_for_kafkas(tmp_path: Path) -> None:
    run(planned(tmp_path, two_values()))
    suffixes = {p.suffix for p in attempt_dir(tmp_path, "r1", "a1").iterdir()}
    kafkas = {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".cleaned", ".swap"}
    assert not suffixes & kafkas


def test_attempts_do_not_meet_and_give_the_same(tmp_path: Path) -> None:
    plan = planned(tmp_path, two_values(Codec.LZ4))
    one, two = (run_plan(plan, name, FS, ManualClock()) for name in ("a1", "a2"))
    assert one.groups == two.groups


@pytest.mark.parametrize(
    ("codec", "rules"),
    [
        (Codec.LZ4, Rules.LAPSE),
        (Codec.ZSTD, Rules.LAPSE),
        (Codec.GZIP, Rules.LAPSE),
        (Codec.GZIP, Rules.KAFKA_43),
    ],
)
def test_a_wheel_that_hides_its_functions_costs_time_and_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec, rules: Rules
) -> None:
    """Of lz4 no byte either, nor of what is to be as Kafka makes it."""
    values = [b" ".join(b"%d" % (n * n % 1009) for n in range(9000 * k)) for k in range(1, 6)]
    records = [NewRecord(b"%d" % n, value, NOW) for n, value in enumerate(values)]
    first = build_batch(records, BatchSpec(0, codec=codec))
    plan = planned(tmp_path, first + build_batch(records[:3], BatchSpec(5, codec=codec)))
    plan = replace(plan, rules=rules)
    one = run_plan(plan, "a1", FS, ManualClock())
    for library in (gzip_library, lz4_library, zstd_library):
        monkeypatch.setattr(library, "IS_THERE", False)
    two = run_plan(plan, "a2", FS, ManualClock())
    assert one.error is None
    assert one.records_written == two.records_written == 5
    if rules is Rules.LAPSE and codec is not Codec.LZ4:
        assert codec is not Codec.GZIP or one.bytes_written < two.bytes_written
        return
    assert one.groups == two.groups
    kept, again = (attempt_dir(tmp_path, "r1", name) for name in ("a1", "a2"))
    for path in kept.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_a_failed_attempt_claims_nothing(tmp_path: Path) -> None:
    """Neither that the log is clean from some offset on, nor that what is below its start went."""
    plan = replace(planned(tmp_path, two_values()), log_start=1)
    receipt = failed(plan, "a1", "disk full")
    assert (receipt.error, receipt.groups) == ("disk full", ())
    assert (receipt.end_offset, receipt.log_start) == (plan.dirty, -1)
    assert run(plan).log_start == 1


def test_an_idle_round_writes_nothing(tmp_path: Path) -> None:
    receipt = run(planned(tmp_path, build_batch([NewRecord(b"a", b"1", NOW)])))
    assert (receipt.error, receipt.groups, receipt.end_offset) == (None, (), 10)


def patched(data: bytes, position: int, pattern: str, value: int, *, crc: bool = True) -> bytes:
    out = bytearray(data)
    struct.pack_into(pattern, out, position, value)
    if crc:
        struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("dirty", [0, 10])
def test_any_flipped_byte_under_the_checksum_ends_the_attempt(
    tmp_path: Path, codec: Codec, dirty: int
) -> None:
    """In a dirty and in a clean segment; the count of records among them, before it is believed."""
    good = two_values(codec)
    dirty_one = build_batch([NewRecord(b"a", b"newest", NOW)], BatchSpec(10))
    for at, bit in [(at, 0x04) for at in range(21, len(good))] + [(57, 0x40)]:
        bad = bytearray(good)
        bad[at] ^= bit
        receipt = run(planned(tmp_path, bytes(bad), dirty_one, dirty=dirty))
        assert receipt.error is not None, at
        assert receipt.error.startswith("t-0: "), at
        assert f"{0:020d}.log: " in receipt.error, at
        assert (receipt.groups, receipt.end_offset) == ((), dirty)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (two_values()[:-1], "batch cut off"),
        (build_batch([NewRecord(b"k", b"v")], BatchSpec(control=True)), "control record does not"),
        (
            build_batch([NewRecord(b"\0\0\0\1", b"v")], BatchSpec(codec=Codec.LZ4, control=True)),
            "control record does not",
        ),
        (build_batch([NewRecord(b"k", b"v")], BatchSpec(attributes_more=0x80)), "0x80"),
        (patched(two_values(), 21, ">h", 6), "codec 6"),
        (patched(two_values(), 57, ">i", 4), "does not parse"),
        (patched(two_values(), 61, ">B", 0xFF), "does not parse"),
        (patched(two_values(), 21, ">h", Codec.GZIP), "gzip"),
    ],
)
def test_what_is_not_cleaned_here(tmp_path: Path, data: bytes, words: str) -> None:
    receipt = run(planned(tmp_path, data))
    assert receipt.error is not None
    assert words in receipt.error


@pytest.mark.parametrize(
    ("base_offset", "reason"),
    [
        (7, "offset 11 is in the segment of 10 on"),
        (2, "base offset 2 is not above what precedes it"),
        (5, None),
    ],
)
def test_offsets_that_overlap_are_not_cleaned(
    tmp_path: Path, base_offset: int, reason: str | None
) -> None:
    """No checksum covers a base offset: which record of a key is the newer, nobody could say."""
    first = two_values()
    second = build_batch([NewRecord(b"a", b"5", NOW)] * 5, BatchSpec(base_offset))
    newest = build_batch([NewRecord(b"a", b"newest", NOW)], BatchSpec(10))
    receipt = run(planned(tmp_path, first + second, newest))
    assert receipt.bad == (None if reason is None else BadSpot(0, 3, len(first), reason))
    assert (receipt.error is None) is (reason is None)


def test_a_segment_shorter_than_planned_or_gone(tmp_path: Path) -> None:
    plan = planned(tmp_path, two_values())
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(two_values()[:-1])
    error = run(plan).error
    assert error is not None
    assert "shorter than planned" in error
    assert run(plan).bad == BadSpot(
        0, 0, len(two_values()) - 1, "the segment is shorter than planned (92 bytes)"
    )
    path.unlink()
    assert run(plan).bad == BadSpot(0, 0, 0, "the file is gone")


def test_what_was_appended_since_is_not_read(tmp_path: Path) -> None:
    plan = planned(tmp_path, two_values())
    with open(tmp_path / f"{0:020d}.log", "ab") as f:
        f.write(b"garbage")
    assert run(plan).error is None


# --- progress -------------------------------------------------------------------------------------


def test_the_progress_file_is_written_now_and_then(tmp_path: Path) -> None:
    clock = ManualClock()
    assert read_progress(tmp_path) == 0
    file = ProgressFile(FS, tmp_path / "progress", clock)
    file.tick(10)
    assert read_progress(tmp_path) == 0
    clock.advance(500)
    file.tick(5)
    assert read_progress(tmp_path) == 15
    file.tick(PROGRESS_BYTES - 1)
    assert read_progress(tmp_path) == 15
    file.tick(1)
    assert read_progress(tmp_path) == PROGRESS_BYTES + 15
    (tmp_path / "progress").write_bytes(b"")  # between truncation and write
    assert read_progress(tmp_path) == 0


def test_inline_engine(tmp_path: Path) -> None:
    plans = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        plans.append(planned(tmp_path / name, two_values()))
    (tmp_path / "two" / f"{0:020d}.log").unlink()
    seen: list[Progress] = []
    receipts = list(receipts_of(InlineEngine(FS, ManualClock()).submit(plans), seen.append))
    assert [r.error is None for r in receipts] == [True, False]
    total = sum(work_bytes(p) for p in plans)
    assert seen[-1] == Progress(total, total)
    done = [p.bytes_done for p in seen]
    assert done == sorted(done)


def test_what_stands_in_for_an_engine_asks_for_one(tmp_path: Path) -> None:
    """And no new process is begun for its sake: it has none that could be lost."""
    asleep = Asleep()
    assert not asleep.can_be_lost
    with pytest.raises(EngineWanted, match="rounds of 1 logs are due"):
        asleep.submit([planned(tmp_path, two_values())])
    with pytest.raises(EngineWanted, match="0 segments are to be looked through"):
        asleep.summarise([])


def test_how_long_the_rest_takes() -> None:
    assert Progress(25, 100).left_ms(2.0) == 6000
    assert Progress(100, 100).left_ms(2.0) == 0
    assert Progress(0, 100).left_ms(60.0) is None
    assert Progress(50, 100).left_ms(GUESS_SECONDS / 2) is None
