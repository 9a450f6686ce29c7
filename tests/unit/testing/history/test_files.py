"""Files as a reader finds them, and a ledger that lies.

A log is written, cleaned by a round and looked at; then each lie is put into its ledger or its
files by hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.run import receipts_of
from lapse.log.directory import LogDirectory
from lapse.records.builder import NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock
from lapse.testing.history.account import Account
from lapse.testing.history.events import Event, Isolation, ReadFrom
from lapse.testing.history.files import ledger_findings, look
from lapse.testing.history.judge import judge
from lapse.testing.history.promise import Promise
from lapse.testing.history.recorder import Recorder
from lapse.testing.history.verdict import Fault
from tests.support.lifecycle.rounds import NOW, compacted, env_of, plan_of

TP = TopicPartition("prices", 0)
KEYS, TIMES = 5, 6
SETTINGS = {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"}


@dataclass
class Written:
    """A cleaned log's folder, and how it came about."""

    folder: Path
    events: list[Event]
    recorder: Recorder
    clock: ManualClock

    def findings(self, log_start: int = 0) -> list[tuple[Fault, int]]:
        account = Account.of(self.events)
        found = ledger_findings(account, self.folder, log_start)
        return [(finding.fault, finding.offset) for finding in found]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    clock, events = ManualClock(NOW), list[Event]()
    recorder = Recorder(events.append, clock)
    recorder.promised(TP.topic, Promise.of(SETTINGS, slack_ms=1000))
    wrote = recorder.producer("p")
    config = compacted()
    directory = LogDirectory.open(tmp_path / "data", env_of(clock))
    log = directory.create_log(TP, config)
    for n in range(KEYS * TIMES):
        key, value = b"k%d" % (n % KEYS), b"v%d" % n + b"." * 20
        number, headers = wrote.sending(*TP, key, value)
        record = NewRecord(key, value, NOW, tuple(headers))
        checked = check_produced(build_batch([record]), config, NOW, str(TP))
        done = log.append(checked, leader_epoch=0, now_ms=NOW)
        wrote.acknowledged(number, TP.partition, done.base_offset)
    log.roll(NOW)
    directory.close()
    return Written(tmp_path / "data" / str(TP), events, recorder, clock)


def clean(written: Written) -> None:
    with DirectoryOwner(written.folder.parent, {TP: compacted()}, RealFs(), written.clock) as owner:
        [info] = owner.logs()
        plan = plan_of(info, "r1", NOW, force=True)
        receipts = list(receipts_of(InlineEngine(RealFs(), written.clock).submit([plan])))
        [result] = owner.commit(receipts)
        assert result.error is None


def rewrite_ledger(
    folder: Path, change: Callable[[ledger.LedgerEntry], ledger.LedgerEntry | None]
) -> None:
    entries = [change(entry) for entry in ledger.read(folder)]
    ledger.ledger_path(folder).unlink()
    for entry in entries:
        if entry is not None:
            ledger.append(RealFs(), folder, entry)


def test_a_look_finds_every_record_wherever_it_lies(written: Written) -> None:
    assert look(written.recorder, written.folder) == KEYS * TIMES
    clean(written)
    assert look(written.recorder, written.folder) == KEYS
    assert judge(written.events).findings == ()
    run = [event for event in written.events if isinstance(event, ReadFrom)][-1]
    assert run.isolation is Isolation.FILES
    for n, path in enumerate(sorted(written.folder.glob("*.log"))):
        path.rename(written.folder / f"{n}.log.deleted")
    (written.folder / "odd.log").mkdir()
    assert look(written.recorder, written.folder) == KEYS


def test_what_is_superseded_and_in_some_file_is_late(written: Written) -> None:
    old = {path.name: path.read_bytes() for path in written.folder.glob("*.log")}
    clean(written)
    for name, data in old.items():
        (written.folder / f"{name}.deleted").write_bytes(data)
    written.clock.advance(1_000_000)
    look(written.recorder, written.folder)
    found = {(finding.fault, finding.offset) for finding in judge(written.events).findings}
    assert found == {(Fault.LATE, offset) for offset in range(KEYS * (TIMES - 1))}


def test_a_ledger_that_tells_the_truth(written: Written) -> None:
    assert written.findings() == []
    clean(written)
    assert written.findings() == []


def test_a_departure_that_no_ledger_tells_of(written: Written) -> None:
    clean(written)
    rewrite_ledger(written.folder, lambda _: None)
    gone = list(range(KEYS * (TIMES - 1)))
    assert written.findings() == [(Fault.LEDGER, offset) for offset in gone]
    assert written.findings(log_start=20) == [(Fault.LEDGER, offset) for offset in gone[20:]]


def test_a_departure_of_what_is_there(written: Written) -> None:
    """What a crash left that booked a group which was never in place."""
    old = {path.name: path.read_bytes() for path in written.folder.glob("*.log")}
    clean(written)
    for name, data in old.items():
        (written.folder / name).write_bytes(data)
    gone = KEYS * (TIMES - 1)
    assert set(written.findings()) == {(Fault.LEDGER, offset) for offset in range(gone)}


def test_an_entry_that_names_too_much(written: Written) -> None:
    clean(written)
    last = KEYS * TIMES - 1

    def more(entry: ledger.LedgerEntry) -> ledger.LedgerEntry:
        first, *others = entry.removed
        bitmap = first.offsets()
        bitmap.add(last - first.segment_base)
        return replace(entry, removed=(replace(first, bitmap=bitmap.serialize()), *others))

    rewrite_ledger(written.folder, more)
    assert written.findings() == [(Fault.LEDGER, last)]


def test_a_record_in_two_live_files(written: Written) -> None:
    source = min(written.folder.glob("*.log"))
    shutil.copy(source, written.folder / f"{10**6:020d}.log")
    assert (Fault.DOUBLED, 0) in written.findings()


def test_a_folder_that_is_no_partitions(tmp_path: Path) -> None:
    recorder = Recorder(lambda _: None, ManualClock(NOW))
    with pytest.raises(ValueError, match="no partition's folder"):
        look(recorder, tmp_path / ".lapse")
