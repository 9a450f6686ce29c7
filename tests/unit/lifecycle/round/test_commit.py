"""Commits of many logs together; what a crash leaves is tests/crash/test_commit's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round import ledger, rewrite
from lapse.lifecycle.round.commit import (
    CommitEnv,
    DirectoryEnv,
    commit_all,
    finish_commit,
    intent_path,
)
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import FileReceipt, Receipt, attempt_dir, attempt_file
from lapse.lifecycle.round.run import receipts_of
from lapse.log import checkpoints
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.log.swap import SWAP, sweep_attempts
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    NOW,
    Pair,
    commit,
    compacted,
    make_logs,
    overwritten,
    plan_of,
    records_in,
    write,
)


class Counting(RealFs):
    """Counts what takes long, and fails where it is told to."""

    def __init__(self) -> None:
        self.syncs: list[int] = []
        self.single = 0
        self.failing_sync = -1
        self.failing_renames = self.failing_unlinks = "/"  # names that end like that
        self.written: list[str] = []
        self.order: list[str] = []

    def sync_all(self, paths: list[Path]) -> None:  # type: ignore[override]
        self.syncs.append(len(paths))
        self.order += ["sync", *(p.name for p in paths if p.name == ledger.LEDGER_FILE)]
        if len(self.syncs) - 1 == self.failing_sync:
            raise StorageError("syncing: Input/output error")

    def fsync_file(self, path: Path) -> None:  # noqa: ARG002
        self.single += 1

    def fsync_dir(self, path: Path) -> None:  # noqa: ARG002
        self.single += 1

    def rename(self, source: Path, target: Path) -> None:
        self._may_fail(target, self.failing_renames)
        if target.name == checkpoints.CLEANER:
            self.written.append(target.name)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._may_fail(path, self.failing_unlinks)
        super().unlink(path)

    def _may_fail(self, path: Path, ending: str) -> None:
        if path.name.endswith(ending):
            raise StorageError(f"{path}: Input/output error")


@dataclass
class Owned:
    """Logs, and receipts of a round over each."""

    owner: DirectoryOwner
    fs: Counting
    data: Path
    receipts: list[Receipt]

    @property
    def log(self) -> PartitionLog:
        """Of the only one."""
        [log] = self.owner._directory.logs.values()
        return log

    @property
    def receipt(self) -> Receipt:
        [receipt] = self.receipts
        return receipt

    def kept(self, name: str) -> int:
        return len(records_in(self.data / name))

    def checkpoint(self) -> dict[str, int]:
        saved = checkpoints.read_offsets(self.data / checkpoints.CLEANER)
        return {str(tp): offset for tp, offset in saved.items()}


@contextmanager
def owned(data: Path, *topics: str, pairs: list[Pair] | None = None) -> Iterator[Owned]:
    clock, fs = ManualClock(NOW), Counting()
    written = dict.fromkeys(topics, overwritten() if pairs is None else pairs)
    configs = make_logs(data, written, compacted(), clock)
    with DirectoryOwner(data, configs, fs, clock) as owner:
        plans = [plan_of(info, f"r-{info.facts.partition}", NOW) for info in owner.logs()]
        receipts = list(receipts_of(InlineEngine(RealFs(), clock).submit(plans)))
        fs.single = 0
        yield Owned(owner, fs, data, receipts)


def test_many_logs_share_syncs_and_a_checkpoint(tmp_path: Path) -> None:
    """Three syncs (files, renames, ledgers) and one checkpoint, however many logs."""
    topics = [f"t{n}" for n in range(12)]
    with owned(tmp_path / "data", *topics) as o:
        results = o.owner.commit(o.receipts)
        assert [r.error for r in results] == [None] * 12
        assert all(r.groups > 1 for r in results)
        assert len(o.fs.syncs) == 3
        assert o.fs.order == ["sync", "sync", "sync", *["ledger"] * 12]
        assert len(o.fs.written) == 1
        # The checkpoint's own two, and no more for any number of logs.
        assert o.fs.single == 2
        assert {o.kept(f"{t}-0") for t in topics} == {10}
        assert o.checkpoint() == {f"{t}-0": 100 for t in topics}


def test_one_that_is_refused_leaves_the_others(tmp_path: Path) -> None:
    with owned(tmp_path / "data", "a", "b", "c", "d") as o:
        a, b, c, d = o.receipts
        torn = attempt_dir(o.data / "b-0", b.round_id, b.attempt_id)
        (torn / attempt_file(b.groups[0].base_offset, "records")).write_bytes(b"torn")
        results = o.owner.commit([replace(a, generation=1), b, replace(c, error="no luck"), d])
        errors = [r.error for r in results]
        assert errors[0] is not None
        assert "generation" in errors[0]
        assert errors[1] is not None
        assert "is not what its receipt says" in errors[1]
        assert errors[2:] == ["no luck", None]
        assert [o.kept(f"{t}-0") for t in "abcd"] == [100, 100, 100, 10]
        assert o.checkpoint() == {"d-0": 100}
        assert not any(intent_path(o.data / f"{t}-0").exists() for t in "abcd")


def test_what_the_round_read_is_durable_before_anything_of_it_goes(tmp_path: Path) -> None:
    """Else a power cut could take a record and the one that it superseded."""
    with owned(tmp_path / "data", "a") as o:
        write(o.log, [("k0", "newest")], NOW)
        o.log.roll(NOW)
        end = o.log.log_end_offset
        assert o.log.recovery_point < end
        [result] = o.owner.commit([replace(o.receipt, end_offset=end)])
        assert result.error is None
        assert o.log.recovery_point == end


def test_what_the_round_read_is_not_synced_a_second_time(tmp_path: Path) -> None:
    """Appends go on meanwhile: those need not be durable for a round that ended below them."""
    with owned(tmp_path / "data", "a") as o:
        write(o.log, [("late", "value")], NOW)
        assert o.log.recovery_point == o.receipt.end_offset
        [result] = o.owner.commit(o.receipts)
        assert result.error is None
        assert len(o.fs.syncs) == 3
        assert o.log.recovery_point == o.receipt.end_offset


@pytest.mark.parametrize("kind", ["records", "times", "removed"])
def test_a_tasks_files_have_the_bytes_that_it_wrote(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only as many: between a task and its owner there may be another machine's disk."""
    monkeypatch.setattr(rewrite, "TOLD_BYTES_MAX", 0)
    with owned(tmp_path / "data", "a", pairs=overwritten(keys=7, times=6)) as o:
        elsewhere = replace(o.receipt, attempt_id="of-another-process")
        folder = attempt_dir(o.log.dir, o.receipt.round_id, o.receipt.attempt_id)
        folder.rename(folder.with_name(elsewhere.attempt_id))
        base = next(
            group.base_offset
            for group in elsewhere.groups
            if any(file.kind == kind and file.size for file in group.files)
        )
        path = folder.with_name(elsewhere.attempt_id) / attempt_file(base, kind)
        good = path.read_bytes()
        path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        [result] = o.owner.commit([elsewhere])
        said = f"{path}: the attempt's file is not what its receipt says at byte 0"
        assert said in str(result.error)
        assert o.kept("a-0") == 42
        assert not intent_path(o.log.dir).exists()
        path.write_bytes(good)
        [result] = o.owner.commit([elsewhere])
        assert result.error is None
        assert o.kept("a-0") == 7


@pytest.mark.parametrize("failing", [0, 1, 2], ids=["files", "renames", "ledgers"])
def test_a_sync_that_fails_checkpoints_nothing(tmp_path: Path, failing: int) -> None:
    """And is not asked for again: the system may say yes the second time."""
    with owned(tmp_path / "data", "a", "b") as o:
        o.fs.failing_sync = failing
        results = o.owner.commit(o.receipts)
        assert all("Input/output error" in str(r.error) for r in results)
        assert not (o.data / checkpoints.CLEANER).exists()
        assert [o.kept("a-0"), o.kept("b-0")] == ([100, 100], [10, 10])[failing > 0]
        assert bool(list(ledger.read(o.data / "a-0"))) == (failing == 2)
        assert intent_path(o.data / "a-0").exists() == bool(failing)
        if failing:  # the books are closed by the next commit, and nothing is booked twice
            again = o.owner.commit(o.receipts)
            assert [r.error for r in again] == [None, None]
            assert o.checkpoint() == {"a-0": 100, "b-0": 100}
            entries = list(ledger.read(o.data / "a-0"))
            assert len(entries) == len(o.receipts[0].groups)


def test_the_same_log_twice_goes_in_turns(tmp_path: Path) -> None:
    """A log has one intent: the second is refused for what the first has changed, or is done."""
    with owned(tmp_path / "data", "a", "b") as o:
        a, b = o.receipts
        other = replace(a, round_id="another")
        results = o.owner.commit([a, other, b, a])
        assert [r.error is None for r in results] == [True, False, True, True]
        assert results[3].groups == 0
        assert [o.kept("a-0"), o.kept("b-0")] == [10, 10]


def test_no_log_is_cut_back_while_a_round_of_it_is_committed(tmp_path: Path) -> None:
    """From before its files are checked until its checkpoint has moved (KIP-101)."""
    with owned(tmp_path / "data", "a", "b") as o:
        logs = {str(tp): log for tp, log in o.owner._directory.logs.items()}
        held, halfway = list[bool](), list[bool]()

        def look() -> None:
            held.extend(log.committing.locked() for log in logs.values())
            halfway.append(any((tmp_path / "data").glob(f"*/*{SWAP}")))

        def moved(offsets: Mapping[TopicPartition, int], _of: object) -> None:
            assert len(offsets) == 2
            look()

        env = DirectoryEnv(RealFs(), ManualClock(NOW), moved, look)
        results = commit_all([(logs[r.name], r) for r in o.receipts], env)
        assert [r.error for r in results] == [None, None]
        assert sum(halfway) >= 2 * sum(r.groups for r in results)  # a turn between renames, too
        assert all(held)
        assert not any(log.committing.locked() for log in logs.values())


def test_a_trim_moves_no_checkpoint_and_tells_the_log(tmp_path: Path) -> None:
    """L11: the log start was served up to there."""
    with owned(tmp_path / "data", "a") as o:
        [log] = o.owner._directory.logs.values()
        log.delete_records(3)
        assert [move.offset for move in log.facts().start_moves] == [3]
        [receipt] = o.receipts
        trim = replace(receipt, groups=(), kind="trim", end_offset=-1, log_start=3)
        [result] = o.owner.commit([replace(trim, error="no luck")])
        assert log.facts().start_moves
        [result] = o.owner.commit([trim])
        assert result.error is None
        assert log.facts().start_moves == ()
        assert not (o.data / checkpoints.CLEANER).exists()


def test_an_index_of_aborted_transactions_comes_along(tmp_path: Path) -> None:
    """Where a group has one; the others have none."""
    with owned(tmp_path / "data", "a") as o:
        [receipt] = o.receipts
        with_aborts, *others = receipt.groups
        data = encode_entries([AbortedTxn(7, 1, 3, 3)])
        folder = attempt_dir(o.data / "a-0", receipt.round_id, receipt.attempt_id)
        (folder / attempt_file(with_aborts.base_offset, "aborted")).write_bytes(data)
        file = FileReceipt("aborted", len(data), crc_of(data))
        with_aborts = replace(with_aborts, files=(*with_aborts.files, file))
        [result] = o.owner.commit([replace(receipt, groups=(with_aborts, *others))])
        assert result.error is None
        indexes = list((o.data / "a-0").glob("*.txnindex"))
        mine = [path for path in indexes if int(path.stem) == with_aborts.base_offset]
        assert [path.read_bytes() for path in mine] == [data]


def crc_of(data: bytes) -> int:
    return crc32c(np.frombuffer(data, np.uint8), 0, len(data))


# --- what changed meanwhile ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clean", "trim"])
def test_a_receipt_without_groups_is_of_one_generation(tmp_path: Path, kind: str) -> None:
    """Else it would move the checkpoint, or serve the log start, of a log made anew."""
    with owned(tmp_path / "data", "a") as o:
        o.log.delete_records(3)
        empty = replace(o.receipt, groups=(), kind=kind, log_start=3)
        empty = empty if kind == "clean" else replace(empty, end_offset=-1)
        for generation in (0, empty.generation - 1, empty.generation + 1):
            [result] = o.owner.commit([replace(empty, generation=generation)])
            assert f"generation {o.log.generation}" in str(result.error)
            assert o.checkpoint() == {}
            assert o.log.start_moves
        [result] = o.owner.commit([empty])
        assert result.error is None
        assert o.checkpoint() == ({"a-0": 100} if kind == "clean" else {})
        assert not o.log.start_moves


class Meddling(Counting):
    """Somebody changes the log's settings while one of the syncs of a commit is made."""

    def __init__(self, log: PartitionLog, at: int) -> None:
        super().__init__()
        self._log, self._at = log, at

    def sync_all(self, paths: list[Path]) -> None:  # type: ignore[override]
        super().sync_all(paths)
        if len(self.syncs) == self._at:
            self._log.update_config(compacted(cleanup_policy="delete"))


@pytest.mark.parametrize(("at", "groups"), [(1, 0), (2, 9), (3, 9)])
def test_a_log_that_changes_during_the_commit_keeps_its_checkpoint(
    tmp_path: Path, at: int, groups: int
) -> None:
    with owned(tmp_path / "data", "a") as o:
        moved: list[int] = []
        env = CommitEnv(Meddling(o.log, at), ManualClock(NOW), moved.append)
        result = commit(o.log, o.receipt, env)
        assert "generation" in str(result.error)
        assert moved == []
        assert result.groups == groups == len(list(ledger.read(o.log.dir)))
        assert not intent_path(o.log.dir).exists()


class StillWritten(RealFs):
    """A task that Spark gave up on makes files in the folder that is being removed."""

    def remove_tree(self, path: Path) -> None:
        raise StorageError(f"removing {path}: Directory not empty")


def test_what_cannot_be_swept_yet_is_no_refusal(tmp_path: Path) -> None:
    """The round is in, and whoever opens the log next, or serves it, removes the rest."""
    with owned(tmp_path / "data", "a") as o:
        moved: list[int] = []
        result = commit(o.log, o.receipt, CommitEnv(StillWritten(), ManualClock(NOW), moved.append))
        assert (result.error, result.groups, moved) == (None, 9, [100])
        assert not intent_path(o.log.dir).exists()
        assert o.kept("a-0") == 10
        assert sweep_attempts(RealFs(), o.log.dir) == 1


def test_a_log_that_changes_while_it_is_checkpointed_keeps_its_log_start(tmp_path: Path) -> None:
    with owned(tmp_path / "data", "a") as o:
        o.log.delete_records(3)

        def meddle(_: int) -> None:
            o.log.update_config(compacted(cleanup_policy="delete"))

        receipt = replace(o.receipt, log_start=3)
        result = commit(o.log, receipt, CommitEnv(RealFs(), ManualClock(NOW), meddle))
        assert "generation" in str(result.error)
        assert o.log.start_moves


def test_a_group_that_retention_took_is_not_booked(tmp_path: Path) -> None:
    """W-3: its records are gone by retention, and not by this round."""
    with owned(tmp_path / "data", "a") as o:
        *gone, last = o.receipt.groups
        taken = {base for group in gone for base in group.old_bases}
        o.log.delete_segments(taken)
        [result] = o.owner.commit(o.receipts)
        assert (result.error, result.groups) == (None, 1)
        assert [entry.base_offset for entry in ledger.read(o.log.dir)] == [last.base_offset]
        assert list(ledger.departures(o.log.dir, 0)) == []
        assert o.checkpoint() == {"a-0": 100}


def test_nothing_is_left_of_any_group(tmp_path: Path) -> None:
    with owned(tmp_path / "data", "a") as o:
        o.log.delete_segments([s.base_offset for s in o.log.segments[:-1]])
        [result] = o.owner.commit(o.receipts)
        assert (result.error, result.groups) == (None, 0)
        assert not ledger.ledger_path(o.log.dir).exists()
        assert not intent_path(o.log.dir).exists()


@pytest.mark.parametrize("how", ["retention", "delete records"])
def test_a_group_that_is_partly_gone_does_not_come_back(tmp_path: Path, how: str) -> None:
    """Where Kafka skips what is gone (W-3), the new segment would bring its records back."""
    clock, data = ManualClock(NOW), tmp_path / "data"
    pairs = {"a": [(f"k{n}", "v" * 20) for n in range(40)]}
    configs = make_logs(data, pairs, compacted(), clock)
    larger = dict.fromkeys(configs, compacted(internal_segment_bytes=8000))
    with DirectoryOwner(data, larger, RealFs(), clock) as owner:
        [info] = owner.logs()
        plan = plan_of(info, "r1", NOW, force=True)
        [receipt] = receipts_of(InlineEngine(RealFs(), clock).submit([plan]))
        [group] = receipt.groups
        first, second, *_ = group.old_bases
        [log] = owner._directory.logs.values()
        if how == "retention":
            log.delete_segments([first])
        else:
            log.delete_records(second)
        [result] = owner.commit([receipt])
        assert f"segments [{first}] of the group are gone" in str(result.error)
        assert min(records_in(log.dir)) == log.log_start_offset == second
        assert not (data / checkpoints.CLEANER).exists()
        assert list(ledger.read(log.dir)) == []
        assert not intent_path(log.dir).exists()

        [info] = owner.logs()  # and is simply made again
        plan = plan_of(info, "r2", NOW, force=True)
        again = receipts_of(InlineEngine(RealFs(), clock).submit([plan]))
        [result] = owner.commit(list(again))
        assert (result.error, result.groups) == (None, 1)
        assert min(records_in(log.dir)) == second


def refused_halfway(receipt: Receipt) -> Receipt:
    """Its second group is none, the first goes in."""
    first, second, *rest = receipt.groups
    apart = replace(second, old_bases=(second.old_bases[0], rest[-1].old_bases[-1]))
    return replace(receipt, groups=(first, apart, *rest))


def test_a_refusal_halfway_books_what_is_in(tmp_path: Path) -> None:
    with owned(tmp_path / "data", "a") as o:
        first = o.receipt.groups[0]
        [result] = o.owner.commit([refused_halfway(o.receipt)])
        assert "are not sealed neighbours" in str(result.error)
        assert result.groups == 1
        [entry] = ledger.read(o.log.dir)
        assert entry.base_offset == first.base_offset
        assert entry.committed_ms == NOW
        assert o.fs.order == ["sync", "sync", "sync", "ledger"]  # files, renames, ledger
        assert not intent_path(o.log.dir).exists()
        assert o.checkpoint() == {}


@pytest.mark.parametrize(("failing", "booked"), [(1, 0), (2, 1)], ids=["renames", "ledger"])
def test_a_refusal_halfway_books_what_is_durable(tmp_path: Path, failing: int, booked: int) -> None:
    """As a commit that goes through does: the renames first, then the ledger that tells of them."""
    with owned(tmp_path / "data", "a") as o:
        o.fs.failing_sync = failing
        [result] = o.owner.commit([refused_halfway(o.receipt)])
        assert "Input/output error" in str(result.error)
        assert len(list(ledger.read(o.log.dir))) == booked
        assert intent_path(o.log.dir).exists()


# --- after a crash -------------------------------------------------------------------------------


def test_what_is_booked_but_not_in_place_holds_the_checkpoint(tmp_path: Path) -> None:
    """A disk that lied about the renames: they are cleaned again, whatever the ledger says."""
    with owned(tmp_path / "data", "a") as o:
        o.fs.failing_sync = 2
        receipt, log_dir = o.receipt, o.log.dir
        first = min(receipt.groups, key=lambda g: g.base_offset)
        before = {path: path.read_bytes() for path in log_dir.glob(f"{first.base_offset:020d}.*")}
        o.owner.commit(o.receipts)
        moved: list[int] = []
        env = CommitEnv(RealFs(), ManualClock(NOW), moved.append)
        intent = intent_path(log_dir).read_bytes()
        assert finish_commit(log_dir, env) == receipt.round_id
        assert moved == [100]
        intent_path(log_dir).write_bytes(intent)
        for path, data in before.items():
            path.write_bytes(data)
        assert finish_commit(log_dir, env) == receipt.round_id
        assert moved == [100]
        assert len(list(ledger.read(log_dir))) == len(receipt.groups)

        result = commit(o.log, receipt, env)  # nor does the receipt, asked for once more, move it
        assert "its files changed" in str(result.error)
        assert moved == [100]


def test_a_group_of_which_an_old_segment_is_left_is_not_in_place(tmp_path: Path) -> None:
    """A disk that lied about a removal: what is there still is not booked as gone."""
    data, clock, fs = tmp_path / "data", ManualClock(NOW), Counting()
    configs = make_logs(data, {"a": overwritten()}, compacted(), clock)
    larger = dict.fromkeys(configs, compacted(internal_segment_bytes=8000))
    with DirectoryOwner(data, larger, fs, clock) as owner:
        plans = [plan_of(info, "r1", NOW, force=True) for info in owner.logs()]
        [receipt] = receipts_of(InlineEngine(RealFs(), clock).submit(plans))
        first = receipt.groups[0]
        log_dir = data / receipt.name
        left = segment_path(log_dir, first.old_bases[-1], LOG)
        old = left.read_bytes()
        fs.failing_sync = 1
        owner.commit([receipt])
        left.write_bytes(old)
        moved: list[int] = []
        assert finish_commit(log_dir, CommitEnv(RealFs(), clock, moved.append)) == receipt.round_id
        assert moved == []
        booked = [entry.base_offset for entry in ledger.read(log_dir)]
        assert booked == [group.base_offset for group in receipt.groups[1:]]


def test_books_are_completed_on_durable_renames(tmp_path: Path) -> None:
    """Whoever was killed may not have synced them, and the next one may lose its power."""
    with owned(tmp_path / "data", "a") as o:
        o.fs.failing_sync = 1
        o.owner.commit(o.receipts)
        fs, moved = Counting(), []
        for failing, booked in ((0, False), (1, True)):
            fs.syncs, fs.failing_sync = [], failing
            with pytest.raises(StorageError):
                finish_commit(o.log.dir, CommitEnv(fs, ManualClock(NOW), moved.append))
            assert bool(list(ledger.read(o.log.dir))) == booked
            assert moved == []
        fs.failing_sync = -1
        finish_commit(o.log.dir, CommitEnv(fs, ManualClock(NOW), moved.append))
        assert moved == [100]
        assert fs.single == 2  # the ledger, which was written anew, and its folder
        assert len(list(ledger.read(o.log.dir))) == len(o.receipt.groups)


def test_an_intent_waits_while_its_log_is_offline(tmp_path: Path) -> None:
    """Half of the renames are done: only the next opening finds them in order, and may judge."""
    with owned(tmp_path / "data", "a") as o:
        o.fs.failing_renames = ".log.deleted"
        [result] = o.owner.commit(o.receipts)
        assert "Input/output error" in str(result.error)
        o.fs.failing_renames = "/"
        left = intent_path(o.log.dir).read_bytes()
        [result] = o.owner.commit(o.receipts)
        assert "a-0: the log is offline" in str(result.error)
        assert intent_path(o.log.dir).read_bytes() == left
        receipt = o.receipt
    with again(tmp_path / "data", "a") as owner:
        kept = records_in(tmp_path / "data" / "a-0")
        entries = list(ledger.read(tmp_path / "data" / "a-0"))
        gone = sum(len(removed.offsets()) for entry in entries for removed in entry.removed)
        assert [entry.base_offset for entry in entries] == [receipt.groups[0].base_offset]
        assert entries[0].bytes_before == sum(_sizes(left)[0])
        assert len(kept) + gone == 100
        assert owner.logs()[0].facts.cleaner_checkpoint in {None, 0}


def test_a_swap_that_cannot_be_taken_back_takes_the_log_offline(tmp_path: Path) -> None:
    """A `.cleaned` file that stays would undo a later swap after its point of no return (W-5)."""
    with owned(tmp_path / "data", "a") as o:
        o.fs.failing_renames = ".timeindex.cleaned"
        [result] = o.owner.commit(o.receipts)
        assert result.error is not None
        assert o.log.offline_reason is None  # nothing was left
        assert not list(o.log.dir.glob("*.cleaned"))
    with owned(tmp_path / "more", "a") as o:
        o.fs.failing_renames = ".timeindex.cleaned"
        o.fs.failing_unlinks = ".index.cleaned"
        [result] = o.owner.commit(o.receipts)
        assert result.error is not None
        assert o.log.offline_reason is not None
    with again(tmp_path / "more", "a"):
        assert not list((tmp_path / "more" / "a-0").glob("*.cleaned"))
        assert len(records_in(tmp_path / "more" / "a-0")) == 100


@contextmanager
def again(data: Path, topic: str) -> Iterator[DirectoryOwner]:
    configs = {TopicPartition(topic, 0): compacted()}
    with DirectoryOwner(data, configs, RealFs(), ManualClock(NOW)) as owner:
        yield owner


def _sizes(intent: bytes) -> list[tuple[int, ...]]:
    return [group.old_sizes for group in msgspec.json.decode(intent, type=Receipt).groups]
