"""Commits of many logs together; what a crash leaves is tests/crash/test_commit's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.owner_directory import DirectoryOwner
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.commit import intent_path
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import BadSpot, FileReceipt, Receipt, attempt_dir, attempt_file
from lapse.log import checkpoints
from lapse.log.bad import read_bad
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.testing.clock import ManualClock
from tests.unit.lifecycle.rounds import (
    NOW,
    compacted,
    make_logs,
    overwritten,
    plan_of,
    records_in,
)


class Counting(RealFs):
    """Counts what takes long, and fails where it is told to."""

    def __init__(self) -> None:
        self.syncs: list[int] = []
        self.single = 0
        self.failing_sync = -1
        self.written: list[str] = []

    def sync_all(self, paths: list[Path]) -> None:  # type: ignore[override]
        self.syncs.append(len(paths))
        if len(self.syncs) - 1 == self.failing_sync:
            raise StorageError("syncing: Input/output error")

    def fsync_file(self, path: Path) -> None:  # noqa: ARG002
        self.single += 1

    def fsync_dir(self, path: Path) -> None:  # noqa: ARG002
        self.single += 1

    def rename(self, source: Path, target: Path) -> None:
        if target.name == checkpoints.CLEANER:
            self.written.append(target.name)
        super().rename(source, target)


@dataclass
class Owned:
    """Logs, and receipts of a round over each."""

    owner: DirectoryOwner
    fs: Counting
    data: Path
    receipts: list[Receipt]

    def kept(self, name: str) -> int:
        return len(records_in(self.data / name))

    def checkpoint(self) -> dict[str, int]:
        saved = checkpoints.read_offsets(self.data / checkpoints.CLEANER)
        return {str(tp): offset for tp, offset in saved.items()}


@contextmanager
def owned(data: Path, *topics: str) -> Iterator[Owned]:
    clock, fs = ManualClock(NOW), Counting()
    configs = make_logs(data, dict.fromkeys(topics, overwritten()), compacted(), clock)
    with DirectoryOwner(data, configs, fs, clock) as owner:
        plans = [plan_of(info, f"r-{info.facts.partition}", NOW) for info in owner.logs()]
        receipts = list(InlineEngine(RealFs(), clock).run(plans, lambda _: None))
        fs.single = 0
        yield Owned(owner, fs, data, receipts)


def test_many_logs_share_syncs_and_a_checkpoint(tmp_path: Path) -> None:
    """DESIGN §7: one sync before the renames, one after, one checkpoint, however many logs."""
    topics = [f"t{n}" for n in range(12)]
    with owned(tmp_path / "data", *topics) as o:
        results = o.owner.commit(o.receipts)
        assert [r.error for r in results] == [None] * 12
        assert all(r.groups > 1 for r in results)
        assert len(o.fs.syncs) == 2
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


@pytest.mark.parametrize("failing", [0, 1], ids=["before", "after"])
def test_a_sync_that_fails_checkpoints_nothing(tmp_path: Path, failing: int) -> None:
    """And is not asked for again: the system may say yes the second time."""
    with owned(tmp_path / "data", "a", "b") as o:
        o.fs.failing_sync = failing
        results = o.owner.commit(o.receipts)
        assert all("Input/output error" in str(r.error) for r in results)
        assert not (o.data / checkpoints.CLEANER).exists()
        assert [o.kept("a-0"), o.kept("b-0")] == ([100, 100], [10, 10])[failing]
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
    import numpy as np  # noqa: PLC0415

    return crc32c(np.frombuffer(data, np.uint8), 0, len(data))


SPOT = BadSpot(0, 4, 200, "torn")


def test_a_place_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    """L10: durably, and told with the result; nothing else of the receipt counts."""
    with owned(tmp_path / "data", "a") as o:
        [log] = o.owner._directory.logs.values()
        [receipt] = o.receipts
        failed = replace(receipt, error="a-0: torn", bad=SPOT)
        for tries in (1, 2):
            [result] = o.owner.commit([failed])
            assert result.error == "a-0: torn"
            assert result.bad is not None
            assert (result.bad.tries, result.bad.since_ms) == (tries, NOW)
            assert log.facts().bad == read_bad(log.dir) == result.bad
        assert o.kept("a-0") == 100

        [result] = o.owner.commit([replace(failed, generation=1)])  # of files that are gone
        assert result.bad is None
        [result] = o.owner.commit([replace(failed, bad=replace(SPOT, segment_base=5))])
        assert result.bad is None
        assert log.facts().bad.tries == 2


@pytest.mark.parametrize(
    ("changes", "cured"),
    [
        ({}, True),
        ({"upper": 4}, False),
        ({"end_offset": 4}, False),
        ({"kind": "trim", "end_offset": -1}, False),
    ],
)
def test_a_round_that_got_past_it_forgets_it(
    tmp_path: Path, changes: dict[str, object], cured: bool
) -> None:
    with owned(tmp_path / "data", "a") as o:
        [log] = o.owner._directory.logs.values()
        [receipt] = o.receipts
        o.owner.commit([replace(receipt, error="a-0: torn", bad=SPOT)])
        assert log.facts().bad is not None
        past = replace(receipt, groups=(), upper=100, end_offset=100)
        [result] = o.owner.commit([replace(past, **changes)])
        assert result.error is None
        assert (log.facts().bad is None) == cured
        assert (read_bad(log.dir) is None) == cured
