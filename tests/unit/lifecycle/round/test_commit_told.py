"""What a commit tells, and the least values that receipts have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.lifecycle.round import ledger, rewrite
from lapse.lifecycle.round.commit import (
    CommitEnv,
    CommitResult,
    DirectoryEnv,
    commit_all,
    finish_commit,
    intent_path,
)
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import (
    REMOVED,
    BadSpot,
    FileReceipt,
    Receipt,
    attempt_dir,
    attempt_file,
)
from lapse.lifecycle.round.run import receipts_of
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.manifest import MANIFEST, read_manifest
from lapse.log.partition_log import PartitionLog
from lapse.log.summary import FOLDER, summary_path
from lapse.records.batch import as_array
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, env_of, make_logs, overwritten, plan_of

TP = TopicPartition("a", 0)


class Slow(RealFs):
    """Three seconds a sync; fails at the one it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.failing = -1
        self.syncs = 0
        self.durable: list[set[str]] = []
        self.full = False

    def sync_all(self, paths: Sequence[Path]) -> None:
        self._clock.advance(3000)
        self.syncs += 1
        if self.syncs == self.failing:
            raise StorageError("syncing: Input/output error")
        self.durable.append({path.name for path in paths})
        super().sync_all(paths)

    def replace_file(self, path: Path, data: bytes) -> None:  # type: ignore[override]
        if self.full:
            raise StorageError(f"writing {path}: No space left on device")
        super().replace_file(path, data)


class House:
    """Logs, and a receipt of a round over each."""

    def __init__(self, data: Path, *topics: str) -> None:
        self.clock = ManualClock(NOW)
        self.fs = Slow(self.clock)
        configs = make_logs(data, dict.fromkeys(topics, overwritten()), compacted(), self.clock)
        with DirectoryOwner(data, configs, RealFs(), self.clock) as owner:
            plans = [plan_of(info, f"r-{info.facts.partition}", NOW) for info in owner.logs()]
            self.receipts = list(receipts_of(InlineEngine(RealFs(), self.clock).submit(plans)))
        self.directory = LogDirectory.open(data, env_of(self.clock))
        partitions = (TopicPartition(topic, 0) for topic in topics)
        self.logs = [self.directory.open_log(tp, configs[tp]) for tp in partitions]
        self.checkpoints: dict[TopicPartition, int] = {}

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        def checkpointed(offsets: Mapping[TopicPartition, int], _of: object) -> None:
            self.checkpoints.update(offsets)

        env = DirectoryEnv(self.fs, self.clock, checkpointed)
        return commit_all(list(zip(self.logs, receipts, strict=False)), env)

    @property
    def log(self) -> PartitionLog:
        return self.logs[0]

    @property
    def receipt(self) -> Receipt:
        """Of the files as the owner that was here before had them."""
        return replace(self.receipts[0], generation=self.log.generation)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "data", "a")
    yield made
    made.directory.close()


@pytest.fixture
def house_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """Its receipts tell of no removed offsets: these are files, however few."""
    monkeypatch.setattr(rewrite, "TOLD_BYTES_MAX", 0)
    made = House(tmp_path / "data", "a")
    yield made
    made.directory.close()


@pytest.mark.parametrize("topics", [("a",), ("a", "b")])
def test_the_time_of_a_commit_is_shared_by_its_logs(tmp_path: Path, topics: tuple[str]) -> None:
    """Three syncs for all of them: each log has its part."""
    house = House(tmp_path / "data", *topics)
    receipts = [
        replace(receipt, generation=log.generation)
        for log, receipt in zip(house.logs, house.receipts, strict=True)
    ]
    house.clock.advance(500)  # before it began
    results = house.commit(receipts)
    assert [r.error for r in results] == [None] * len(topics)
    assert [r.seconds for r in results] == [9.0 / len(topics)] * len(topics)
    assert house.commit([]) == []
    house.directory.close()


def test_a_round_that_ended_where_the_log_begins_is_checkpointed_there(house: House) -> None:
    [result] = house.commit([replace(house.receipt, groups=(), end_offset=0)])
    assert result.error is None
    assert house.checkpoints == {TP: 0}


def test_one_that_failed_half_way_is_booked_by_the_next_commit(house: House) -> None:
    """Its segments are in; the sync of their ledger failed, and the intent says of what."""
    house.fs.failing = 2
    [first] = house.commit([house.receipt])
    assert first.error is not None
    assert intent_path(house.log.dir).exists()
    assert list(ledger.read_heads(house.log.dir)) == []
    nothing = replace(house.receipt, round_id="next", groups=(), end_offset=5)
    [second] = house.commit([replace(nothing, generation=house.log.generation)])
    assert second.error is None
    heads = list(ledger.read_heads(house.log.dir))
    assert {h.round_id for h in heads} == {house.receipt.round_id}
    assert len(heads) == len(house.receipt.groups)
    assert house.checkpoints == {TP: 5}, "the second one's own"
    assert not intent_path(house.log.dir).exists()


def test_what_a_crash_left_is_finished_once_the_log_is_open(tmp_path: Path) -> None:
    """The round is named, its checkpoint durable, and its attempts are gone."""
    house = House(tmp_path / "data", "a")
    house.fs.failing = 2
    house.commit([house.receipt])
    log, receipt = house.log, house.receipt
    house.directory.close()
    attempts = log.dir / ".lapse" / receipt.round_id
    assert attempts.is_dir()
    env = env_of(ManualClock(NOW))
    directory = LogDirectory.open(tmp_path / "data", env)
    reopened = directory.open_log(TP, compacted())
    assert finish_rounds(reopened, directory, env) == receipt.round_id
    assert not attempts.exists()
    assert finish_rounds(reopened, directory, env) is None
    directory.close()
    saved = checkpoints.read_offsets(tmp_path / "data" / checkpoints.CLEANER)
    assert saved[TP] == receipt.end_offset


@pytest.mark.parametrize(("dirty", "first_offset", "cured"), [(None, 0, True), (1, 0, False)])
def test_a_bad_first_record_is_cured_by_who_read_it(
    house: House, dirty: int | None, first_offset: int, cured: bool
) -> None:
    """A round without a key in its map has read what was dirty: all, if nothing was clean."""
    house.log.cleaner_checkpoint = dirty
    spot = BadSpot(0, first_offset, 0, "torn")
    house.commit([replace(house.receipt, error="a-0: torn", bad=spot)])
    assert house.log.facts().bad is not None
    past = replace(house.receipt, groups=(), upper=100, end_offset=100, map_entries=0)
    house.commit([past])
    assert (house.log.facts().bad is None) == cured


def test_one_key_in_the_map_is_a_map_that_is_looked_into(house: House) -> None:
    house.log.cleaner_checkpoint = 50
    spot = BadSpot(0, 4, 200, "torn")
    house.commit([replace(house.receipt, error="a-0: torn", bad=spot)])
    house.commit([replace(house.receipt, groups=(), upper=100, end_offset=100, map_entries=1)])
    assert house.log.facts().bad is None


def test_a_task_of_this_process_whose_file_is_gone_is_refused(house: House) -> None:
    """Its bytes are not read again, its size is."""
    folder = house.log.dir / ".lapse" / house.receipt.round_id / house.receipt.attempt_id
    for path in folder.iterdir():
        path.unlink()
    [result] = house.commit([house.receipt])
    assert result.error is not None
    assert "is not what its receipt says" in result.error
    assert not intent_path(house.log.dir).exists()


def attempt(house: House) -> Path:
    return attempt_dir(house.log.dir, house.receipt.round_id, house.receipt.attempt_id)


def test_the_ledger_has_the_bytes_before_and_after(house: House) -> None:
    before = {segment.base_offset: segment.size for segment in house.log.segments}
    receipt = house.receipt
    house.commit([receipt])
    after = {segment.base_offset: segment.size for segment in house.log.segments}
    entries = ledger.read(house.log.dir)
    assert [(e.bytes_before, e.bytes_after) for e in entries] == [
        (sum(before[base] for base in group.old_bases), after[group.base_offset])
        for group in receipt.groups
    ]


@pytest.mark.parametrize(
    ("old_sizes", "bytes_before"),
    [((), -1), ((5, 0), 5)],  # an empty one had no bytes
)
def test_an_intent_of_an_older_version_does_not_know_the_bytes_before(
    house: House, old_sizes: tuple[int, ...], bytes_before: int
) -> None:
    house.fs.failing = 2
    house.commit([house.receipt])
    path = intent_path(house.log.dir)
    receipt = msgspec.json.decode(path.read_bytes(), type=Receipt)
    groups = tuple(replace(group, old_sizes=old_sizes) for group in receipt.groups)
    path.write_bytes(msgspec.json.encode(replace(receipt, groups=groups)))
    env = CommitEnv(house.fs, house.clock, lambda _: None)
    assert finish_commit(house.log.dir, env) == receipt.round_id
    assert {e.bytes_before for e in ledger.read(house.log.dir)} == {bytes_before}


def test_nothing_is_left_of_an_attempt_that_is_in(house: House) -> None:
    assert attempt(house).is_dir()
    [result] = house.commit([house.receipt])
    assert result.error is None
    assert not attempt(house).parent.exists()
    assert not intent_path(house.log.dir).exists()


_GARBLED = {"garbled": b"\xc1", "not text": b"\x91\x93\x01\xa1\xff\xc4\x00"}


@pytest.mark.parametrize("how", ["gone", *_GARBLED])
def test_a_task_that_does_not_say_what_it_removed_is_refused(
    house_of_files: House, how: str
) -> None:
    """Before anything is renamed: the ledger would not know."""
    house = house_of_files
    sizes = [segment.size for segment in house.log.segments]
    path = attempt(house) / attempt_file(house.receipt.groups[0].base_offset, REMOVED)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(_GARBLED[how])
    receipt = house.receipt
    group, *rest = receipt.groups
    said = tuple(
        f if f.kind != REMOVED else FileReceipt(f.kind, *size_and_crc(path)) for f in group.files
    )
    [result] = house.commit([replace(receipt, groups=(replace(group, files=said), *rest))])
    assert result.error is not None
    assert f"{path.name}: " in result.error
    assert result.error.endswith(" at byte 0")
    assert [segment.size for segment in house.log.segments] == sizes


@pytest.mark.parametrize("told", _GARBLED.values(), ids=_GARBLED)
def test_a_receipt_that_does_not_say_what_was_removed_is_refused(house: House, told: bytes) -> None:
    sizes = [segment.size for segment in house.log.segments]
    group, *rest = house.receipt.groups
    groups = (replace(group, removed_offsets=told), *rest)
    [result] = house.commit([replace(house.receipt, groups=groups)])
    assert result.error is not None
    assert result.error.endswith(" at byte 0")
    assert [segment.size for segment in house.log.segments] == sizes


def size_and_crc(path: Path) -> tuple[int, int]:
    data = path.read_bytes() if path.exists() else b""
    return len(data), crc32c(as_array(data), 0, len(data))


def test_a_file_of_another_process_that_is_gone_is_refused(house: House) -> None:
    """Its task ran elsewhere, and what it left may not have arrived."""
    mine, theirs = attempt(house), attempt(house).with_name("theirs")
    mine.rename(theirs)
    receipt = replace(house.receipt, attempt_id="theirs")
    (theirs / attempt_file(receipt.groups[-1].base_offset, "records")).unlink()
    [result] = house.commit([receipt])
    assert result.error is not None
    assert "is not what its receipt says" in result.error
    assert not intent_path(house.log.dir).exists()


def test_an_intent_that_lacks_a_groups_records_is_none(house: House) -> None:
    """One that is not whole was written before anything was renamed."""
    receipt = house.receipt
    group, *rest = receipt.groups
    half = replace(receipt, groups=(replace(group, files=group.files[:1]), *rest))
    house.fs.make_dir(intent_path(house.log.dir).parent)
    house.fs.write_file(intent_path(house.log.dir), msgspec.json.encode(half))
    env = CommitEnv(house.fs, house.clock, lambda _: None)
    assert finish_commit(house.log.dir, env) is None
    assert not intent_path(house.log.dir).exists()
    assert finish_commit(house.log.dir, env) is None


def test_summaries_are_durable_before_the_ledger_tells_of_their_segments(house: House) -> None:
    """After a power cut a segment of the round would have those of the old one."""
    receipt = house.receipt
    house.commit([receipt])
    _files, renamed, booked = house.fs.durable
    summaries = {summary_path(house.log.dir, g.base_offset).name for g in receipt.groups}
    assert summaries <= renamed
    assert ledger.ledger_path(house.log.dir).name in booked


def test_what_is_replaced_is_durably_no_longer_expected_before_it_goes(house: House) -> None:
    """After a power cut the manifest would miss old segments that the round has replaced."""
    old = {base for group in house.receipt.groups for base in group.old_bases}
    before = read_manifest(house.log.dir)
    assert before is not None
    assert before.sizes.keys() >= old
    [result] = house.commit([house.receipt])
    assert result.error is None
    files, *_ = house.fs.durable
    assert {MANIFEST, FOLDER} <= files


def test_a_place_that_cannot_be_kept_is_told_all_the_same(house: House) -> None:
    house.fs.full = True
    spot = BadSpot(0, 4, 200, "torn")
    [result] = house.commit([replace(house.receipt, error="a-0: torn", bad=spot)])
    assert result.error is not None
    assert result.error.startswith("a-0: torn; not kept: ")
    assert house.log.facts().bad is not None


@pytest.mark.parametrize(("end_offset", "told"), [(0, [0]), (-1, [])])
def test_recovery_checkpoints_what_the_round_read_and_a_trim_read_nothing(
    house: House, end_offset: int, told: list[int]
) -> None:
    house.fs.failing = 2
    house.commit([replace(house.receipt, end_offset=end_offset)])
    checkpointed: list[int] = []
    finish_commit(house.log.dir, CommitEnv(house.fs, house.clock, checkpointed.append))
    assert checkpointed == told


def test_a_bad_place_in_a_segment_that_is_not_replaced_stays_known(house: House) -> None:
    first, *_, last = house.receipt.groups
    spot = BadSpot(last.old_bases[-1], last.old_bases[-1], 0, "torn")
    house.commit([replace(house.receipt, error="a-0: torn", bad=spot)])
    below = spot.first_offset
    receipt = replace(house.receipt, groups=(first,), upper=below, end_offset=below)
    [result] = house.commit([receipt])
    assert (result.error, result.groups) == (None, 1)
    assert house.log.facts().bad is not None
