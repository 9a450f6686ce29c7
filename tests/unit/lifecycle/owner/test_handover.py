"""A directory handed from one owner to the next: what was planned stays good, or nothing does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import LockHeld
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner import handover
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.handover import Handed, state_of
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.log.directory import LogDirectory
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    NOW,
    compacted,
    env_of,
    overwritten,
    plan_of,
    records_in,
    write,
)

LOG = TopicPartition("t", 0)
CONFIGS = {LOG: compacted()}
LATER = NOW + 60_000  # a log that is opened then has another generation

Change = Callable[[Path], object]


def opened(path: Path, now_ms: int = NOW, handed: Handed | None = None) -> DirectoryOwner:
    return DirectoryOwner(path, CONFIGS, RealFs(), ManualClock(now_ms), handed=handed)


def made(path: Path) -> tuple[Receipt, Handed]:
    """A round that one process has planned and another one made; nobody has committed it."""
    log_dir = LogDirectory.open(path, env_of(ManualClock(NOW)))
    write(log_dir.create_log(LOG, CONFIGS[LOG]), overwritten(), NOW)
    log_dir.close()
    owner = opened(path)
    [info] = owner.logs()
    plan = plan_of(info, "round", NOW)
    handed = owner.hand_over()
    owner.close()  # which the caller may do, and does nothing
    return run_plan(plan, "p0-a0-1", RealFs(), SystemClock()), handed


def append_by_another(path: Path) -> None:
    with opened(path, NOW + 1) as owner:
        write(owner._directory.logs[LOG], [("k1", "other")], NOW + 1)


def delete_records_by_another(path: Path) -> None:
    with opened(path, NOW + 1) as owner:
        owner._directory.logs[LOG].delete_records(7)


def clean_by_another(path: Path) -> None:
    with opened(path, NOW + 1) as owner:
        [info] = owner.logs()
        plan = plan_of(info, "other", NOW + 1, force=True)
        [done] = owner.commit([run_plan(plan, "p0-a0-2", RealFs(), SystemClock())])
        assert done.groups > 0


def touch(path: Path) -> None:
    segment = max((path / str(LOG)).glob("*.log"))
    os.utime(segment, ns=(1, 1))


def replace_by_a_copy(path: Path) -> None:
    segment = min((path / str(LOG)).glob("*.log"))
    found = segment.stat()
    copy = segment.with_name("copy")
    copy.write_bytes(segment.read_bytes())
    os.utime(copy, ns=(found.st_mtime_ns, found.st_mtime_ns))
    copy.rename(segment)


def change_within(path: Path) -> None:
    """Of the same size and time, as a round sets that of the last append."""
    segment = min((path / str(LOG)).glob("*.log"))
    found, data = segment.stat(), segment.read_bytes()
    segment.write_bytes(data)
    os.utime(segment, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_what_was_planned_before_is_committed_after(tmp_path: Path) -> None:
    receipt, handed = made(tmp_path / "data")
    with opened(tmp_path / "data", LATER, handed) as owner:
        assert owner.is_as_handed(str(LOG))
        [done] = owner.commit([receipt])
        assert (done.error, done.groups > 0) == (None, True)
        [info] = owner.logs()
        assert info.facts.cleaner_checkpoint == receipt.end_offset
    assert dict(records_in(tmp_path / "data" / str(LOG)).values()) == dict(overwritten())


def test_without_a_hand_over_it_is_stale_and_swept(tmp_path: Path) -> None:
    receipt, _ = made(tmp_path / "data")
    before = records_in(tmp_path / "data" / str(LOG))
    with opened(tmp_path / "data", LATER) as owner:
        assert not owner.is_as_handed(str(LOG))
        assert not attempt_dir(tmp_path / "data" / str(LOG), receipt.round_id, "").exists()
        [done] = owner.commit([receipt])
        assert done.error is not None
    assert records_in(tmp_path / "data" / str(LOG)) == before


def test_what_another_machine_calls_the_disk_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first task and the last may run on different ones, over a disk that both see."""
    _, handed = made(tmp_path / "data")
    files = handover._files

    def elsewhere(folder: Path) -> Iterator[tuple[str, SimpleNamespace]]:
        for name, found in files(folder):
            seen = {one: getattr(found, one) for one in dir(found) if one.startswith("st_")}
            yield name, SimpleNamespace(**{**seen, "st_dev": found.st_dev + 1})

    monkeypatch.setattr(handover, "_files", elsewhere)
    assert handed.is_unchanged(tmp_path / "data", LOG)


@pytest.mark.parametrize(
    "change",
    [
        append_by_another,
        delete_records_by_another,
        clean_by_another,
        touch,
        replace_by_a_copy,
        change_within,
    ],
)
def test_a_log_that_somebody_has_changed_meanwhile_is_left_alone(
    change: Change, tmp_path: Path
) -> None:
    receipt, handed = made(tmp_path / "data")
    change(tmp_path / "data")
    before = records_in(tmp_path / "data" / str(LOG))
    with opened(tmp_path / "data", LATER, handed) as owner:
        assert not owner.is_as_handed(str(LOG))
        [done] = owner.commit([receipt])
        assert done.error is not None
        assert "files changed since the plan was made" in done.error
    assert records_in(tmp_path / "data" / str(LOG)) == before


def test_an_owner_that_only_looks_changes_nothing_but_sweeps_what_was_made(tmp_path: Path) -> None:
    """Then there is nothing to commit, and nothing is."""
    receipt, handed = made(tmp_path / "data")
    with opened(tmp_path / "data", NOW + 1):
        pass
    before = records_in(tmp_path / "data" / str(LOG))
    with opened(tmp_path / "data", LATER, handed) as owner:
        [done] = owner.commit([receipt])
        assert done.error is not None
    assert records_in(tmp_path / "data" / str(LOG)) == before


def test_nobody_notes_a_state_that_another_owner_may_have_left(tmp_path: Path) -> None:
    """It is noted with the lock held: no other process can open the directory meanwhile."""
    made(tmp_path / "data")
    owner, seen = opened(tmp_path / "data", LATER), []

    def look(partition_dir: Path) -> str:
        with pytest.raises(LockHeld):
            opened(tmp_path / "data", LATER)
        seen.append(partition_dir)
        return state_of(partition_dir)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.lifecycle.owner.directory.state_of", look)
        owner.hand_over()
    assert seen == [tmp_path / "data" / str(LOG)]
    opened(tmp_path / "data", LATER).close()


def test_the_state_is_that_of_files_ours_included(tmp_path: Path) -> None:
    log, more = tmp_path / "t-0", tmp_path / "t-0" / ".lapse"
    (more / "round" / "attempt").mkdir(parents=True)
    (log / "0.log").write_bytes(b"a")
    states = [state_of(log)]
    (more / "round" / "attempt" / "0-records").write_bytes(b"what a round makes is no change")
    assert state_of(log) == states[0]
    (more / "log-start").write_bytes(b"7")
    states.append(state_of(log))
    (log / "0.log").write_bytes(b"ab")
    states.append(state_of(log))
    (log / "0.log").rename(more / "0.log")
    states.append(state_of(log))
    assert len(set(states)) == 4
    assert state_of(tmp_path / "none") != state_of(log)
