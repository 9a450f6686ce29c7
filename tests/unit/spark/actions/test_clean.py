"""The first and the last task of a clean, with rounds made between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.clean import Cleaned
from lapse.client.admin import Admin
from lapse.client.producer import Producer
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.spark.actions.clean import Begun, Made, Wish, begin, finish
from lapse.spark.actions.commands import answer_of
from lapse.spark.rounds.task import run_one
from lapse.spark.session.jobs import ActionFailed
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    NOW,
    compacted,
    make_logs,
    overwritten,
    records_in,
    write,
)

WORDS = ("-ccleanup.policy=compact", "-cmin.compaction.lag.ms=0")
LOG = TopicPartition("t", 0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    topics = {"t": overwritten(), "u": overwritten()}
    make_logs(tmp_path / "data", topics, compacted(), ManualClock(NOW))
    return tmp_path / "data"


def opened(data: Path) -> DirectoryOwner:
    """By another process."""
    return DirectoryOwner(data, {LOG: compacted()}, RealFs(), ManualClock(NOW + 1))


def wish(data: Path, *more: str, slots: int = 2) -> Wish:
    return Wish(("clean", *WORDS, *more, "--", str(data)), slots)


def begun(asked: Wish) -> Begun:
    found: Begun = answer_of(begin(msgspec.json.encode(asked)), Begun)
    return found


def made(found: Begun) -> tuple[Receipt, ...]:
    fs, clock = RealFs(), SystemClock()
    return tuple(run_one(plan, "p0-a0-1", 0, fs, clock) for plan in found.plans)


def ended(asked: Wish, found: Begun, receipts: Sequence[Receipt]) -> list[Cleaned]:
    request = msgspec.json.encode(Made(asked, found, tuple(receipts)))
    lines: list[Cleaned] = answer_of(finish(request), list[Cleaned])
    return lines


def newest(data: Path, name: str) -> dict[str, str | None]:
    return dict(records_in(data / name).values())


def test_what_is_planned_and_made_is_committed(data: Path) -> None:
    asked = wish(data)
    found = begun(asked)
    assert [plan.name for plan in found.plans] == ["t-0", "u-0"]
    assert all(plan.split is None for plan in found.plans), "they are small"
    assert [line.outcome for line in ended(asked, found, made(found))] == ["cleaned", "cleaned"]
    assert newest(data, "t-0") == dict(overwritten())
    assert len(records_in(data / "t-0")) < len(overwritten())
    assert begun(asked).plans == ()


def test_a_last_task_that_runs_again_finds_it_done(data: Path) -> None:
    """As Spark does it where a worker dies between the commit and the answer."""
    asked = wish(data)
    found = begun(asked)
    receipts = made(found)
    first = ended(asked, found, receipts)
    before = records_in(data / "t-0")
    again = ended(asked, found, receipts)
    assert [line.outcome for line in again] == ["cleaned", "cleaned"]
    assert [line.first_dirty_after for line in again] == [line.first_dirty_after for line in first]
    assert records_in(data / "t-0") == before


def test_a_log_that_somebody_wrote_to_meanwhile_is_left_as_it_is(data: Path) -> None:
    """And the other one is cleaned."""
    asked = wish(data)
    found = begun(asked)
    receipts = made(found)
    with opened(data) as owner:
        write(owner._directory.logs[LOG], [("k1", "late")], NOW + 1)
    before = records_in(data / "t-0")
    first, second = ended(asked, found, receipts)
    assert first.finding
    assert "files changed since the plan was made" in first.outcome
    assert records_in(data / "t-0") == before
    assert (second.partition, second.outcome) == ("u-0", "cleaned")


def test_what_came_to_nothing_is_swept(data: Path) -> None:
    asked = wish(data)
    found = begun(asked)
    made(found)
    folder = attempt_dir(data / "t-0", found.plans[0].round_id, "")
    assert folder.exists()
    assert ended(asked, msgspec.structs.replace(found, handed={"states": {}}), ()) == []
    assert not folder.exists()


def test_a_dry_run_changes_nothing(data: Path) -> None:
    def files() -> dict[Path, tuple[int, int, int]]:
        seen = {path: path.stat() for path in data.rglob("*")}
        return {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in seen.items()}

    before = files()
    found = begun(wish(data, "--dry-run"))
    assert [line.outcome for line in found.lines] == ["would be cleaned"] * 2
    assert (found.plans, files()) == ((), before)


def test_a_directory_that_a_tool_has_is_left_alone(data: Path) -> None:
    with opened(data), pytest.raises(ActionFailed, match="is in use"):
        begun(wish(data))


def test_what_a_service_cleans_is_left_to_it(tmp_path: Path) -> None:
    """A broker serves one service at a time; without any, it serves this one."""
    with BrokerProcess(tmp_path / "served", {"lapse.roll.time": "record"}) as broker:
        asyncio.run(fill(broker.bootstrap))
        asked = Wish(("clean", "--force", "--", str(tmp_path / "served")))
        service = RemoteOwner.beside(tmp_path / "served")
        service.logs()
        with pytest.raises(ActionFailed, match=r"refused: .*service"):
            begun(asked)
        service.close()
        lines = {line.partition: line for line in begun(asked).lines}
        assert (lines["t-0"].outcome, lines["t-0"].engine) == ("cleaned", "inline")


async def fill(bootstrap: str) -> None:
    """Two segments of a record each."""
    async with await Admin.open(bootstrap) as admin:
        quick = {"cleanup.policy": "compact", "segment.ms": "1"}
        await admin.create_topic("t", partitions=1, configs=quick)
    for n in range(2):
        async with Producer(bootstrap) as producer:
            await producer.send("t", b"k", b"%d" % n, None, NOW + 1000 * n)


def test_copies_are_cleaned_and_the_source_stays(data: Path, tmp_path: Path) -> None:
    before = records_in(data / "t-0")
    asked = wish(data, f"--to={tmp_path / 'copy'}")
    found = begun(asked)
    assert {line.outcome for line in ended(asked, found, made(found))} == {"cleaned"}
    assert records_in(data / "t-0") == before
    assert newest(tmp_path / "copy", "t-0") == dict(overwritten())
    with pytest.raises(Exception, match="allowed is a new or empty directory"):
        begun(asked)


@pytest.mark.parametrize("copies", [False, True])
def test_a_log_that_lacks_a_segment_is_neither_cleaned_nor_copied(
    data: Path, tmp_path: Path, *, copies: bool
) -> None:
    min((data / "t-0").glob("*.log")).unlink()
    asked = wish(data, *([f"--to={tmp_path / 'copy'}"] if copies else ()))
    found = begun(asked)
    assert [plan.name for plan in found.plans] == ["u-0"]
    [line] = found.lines
    assert (line.partition, line.finding) == ("t-0", True)
    assert "put back what is missing" in line.outcome
    assert {line.outcome for line in ended(asked, found, made(found))} == {"cleaned"}
    assert (tmp_path / "copy" / "u-0").exists() is copies
    assert not (tmp_path / "copy" / "t-0").exists()


def test_tasks_share_the_memory(data: Path) -> None:
    few, many = (begun(wish(data, "--memory=64m", slots=n)).plans[0] for n in (1, 64))
    assert few.map_entries_max > many.map_entries_max
