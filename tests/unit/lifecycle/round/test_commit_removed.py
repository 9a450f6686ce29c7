"""What a round has removed reaches the ledger, whether its receipt tells of it or a file does."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from pyroaring import BitMap

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.lifecycle.round import ledger, rewrite
from lapse.lifecycle.round.commit import CommitEnv, finish_commit
from lapse.lifecycle.round.receipt import attempt_dir
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW
from tests.unit.lifecycle.round.test_commit import owned
from tests.unit.lifecycle.round.test_rewrite import data, plan_of, run, written


def test_a_long_stretch_that_went_is_a_few_bytes_of_the_ledger(tmp_path: Path) -> None:
    """Ledgers are kept for ever."""
    content = data(0, *[None] * 9000) + data(9000, b"a")
    plan = plan_of(tmp_path, (0, content), upper=9001)
    group = run(plan).groups[0]
    assert group.removed == {"keyless": 9000}
    assert 0 < len(group.removed_offsets) < 60


def test_removed_offsets_that_are_many_are_a_file(tmp_path: Path) -> None:
    """A receipt is in the driver's memory, and in the intent; few would not be worth a file."""
    content = data(0, *[None if n % 3 else b"a" for n in range(6000)])
    plan = plan_of(tmp_path, (0, content), upper=6000)
    group = run(plan).groups[0]
    assert group.removed == {"keyless": 4000, "superseded": 1999}
    assert group.removed_offsets == b""
    blobs = msgspec.msgpack.decode(written(plan, 0, "removed"))
    removed = {why: list(BitMap.deserialize(bits)) for _, why, bits in blobs}
    assert removed["keyless"] == [n for n in range(6000) if n % 3]
    assert removed["superseded"] == list(range(0, 5997, 3))
    kinds = [file.kind for file in group.files]
    assert kinds == ["records", "offsets", "times", "removed"]


def test_a_commit_whose_attempt_is_gone_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the attempt knows what its groups removed, and the ledger is to tell of all of it."""
    monkeypatch.setattr(rewrite, "TOLD_BYTES_MAX", 0)
    with owned(tmp_path / "data", "a") as o:
        o.fs.failing_sync = 1
        o.owner.commit(o.receipts)
        attempt = attempt_dir(o.log.dir, o.receipt.round_id, o.receipt.attempt_id)
        elsewhere = attempt.rename(tmp_path / "elsewhere")
        moved: list[int] = []
        env = CommitEnv(RealFs(), ManualClock(NOW), moved.append)
        with pytest.raises(StorageError, match="-removed: No such file or directory"):
            finish_commit(o.log.dir, env)
        assert moved == []
        elsewhere.rename(attempt)
        assert finish_commit(o.log.dir, env) == o.receipt.round_id
        assert moved == [100]
        assert len(list(ledger.read(o.log.dir))) == len(o.receipt.groups)


def test_what_a_receipt_tells_outlives_its_attempt(tmp_path: Path) -> None:
    """The intent has it, so few removed offsets need no file of the attempt."""
    with owned(tmp_path / "data", "a") as o:
        o.fs.failing_sync = 1
        o.owner.commit(o.receipts)
        shutil.rmtree(attempt_dir(o.log.dir, o.receipt.round_id, o.receipt.attempt_id))
        env = CommitEnv(RealFs(), ManualClock(NOW), lambda _: None)
        assert finish_commit(o.log.dir, env) == o.receipt.round_id
        booked = [entry.removed for entry in ledger.read(o.log.dir)]
        removed = [sum(len(one.offsets()) for one in some) for some in booked]
        assert removed == [sum(group.removed.values()) for group in o.receipt.groups]
        assert sum(removed) == 90
