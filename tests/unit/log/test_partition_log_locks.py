"""A merge never stops the house: what holds appends back, and what must not.

Each operation that touches the disk on behalf of a round, of retention or of a DeleteRecords is
stopped at every step; an append of another thread must get through there. One that took the lock
of the appends meanwhile would make it wait for as long as the disk takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.round.summarise import adopt, requests_of, summarise
from lapse.log.facts import ProducerLast
from lapse.log.partition_log import PartitionLog
from lapse.log.producers import Producers
from lapse.log.swap import Replacement
from tests.support.log.logs import (
    NOW,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    open_log,
    rewrite,
)

DEADLOCKED_S = 20  # nobody waits for this unless the test fails
SYNCS = ("fsync_file", "fsync_dir", "sync_all")
ALL = (*SYNCS, "write_file", "rename", "unlink", "make_dir", "truncate", "set_mtime_ns")


class _Stepping(RealFs):
    """Before each operation of one thread, something else happens in another."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.stuck: list[str] = []
        self._thread: int | None = None
        self._meanwhile: Callable[[], object] = lambda: None
        self._names: tuple[str, ...] = ()

    def watch(
        self, do: Callable[[], object], meanwhile: Callable[[], object], names: tuple[str, ...]
    ) -> None:
        self._thread, self._meanwhile, self._names = threading.get_ident(), meanwhile, names
        try:
            do()
        finally:
            self._thread = None

    def _step(self, name: str, path: Path) -> None:
        if threading.get_ident() != self._thread or name not in self._names or self.stuck:
            return
        self.steps.append(name)
        other = threading.Thread(target=self._meanwhile, daemon=True)
        other.start()
        other.join(DEADLOCKED_S)
        if other.is_alive():
            self.stuck.append(f"{name} {path.name}")


def _stepping(name: str) -> Callable[..., object]:
    plain = getattr(RealFs, name)

    def operation(self: _Stepping, *args: object) -> object:
        first = args[0][0] if isinstance(args[0], list) else args[0]
        assert isinstance(first, Path)
        self._step(name, first)
        result: object = plain(self, *args)
        return result

    return operation


for _name in ALL:
    setattr(_Stepping, _name, _stepping(_name))


@pytest.fixture
def fs() -> _Stepping:
    return _Stepping()


@pytest.fixture
def log(tmp_path: Path, fs: _Stepping) -> PartitionLog:
    """Four sealed segments, and an active one that takes all that is appended meanwhile."""
    made = open_log(tmp_path, fs=fs)
    for n in range(4):
        append(made, batch(producer_id=8, producer_epoch=0, base_sequence=3 * n))
        append(made, batch())
        made.roll(NOW)
    made.update_config(config(internal_segment_bytes=1_000_000, index_interval_bytes=1))
    append(made, batch())
    return made


def _rewritten(log: PartitionLog, count: int) -> Replacement:
    group = list(log.segments[:count])
    attempt = log.dir / ".lapse" / "round-1" / "attempt-1"
    return rewrite(log, group, lambda row: row.base_offset % 2 == 0, attempt).replacement


def _swap(log: PartitionLog, made: Replacement) -> Callable[[], object]:
    return lambda: log.replace_segments(made, log.generation)


def _summarised(log: PartitionLog) -> Callable[[], object]:
    """Take over what a task found out, the append clock being known: it is synced."""
    facts = log.facts()
    bare = [replace(s, summary=None) if not s.active else s for s in facts.segments]
    [request, *_] = requests_of([replace(facts, segments=tuple(bare))], records=True)
    receipt = summarise(request)
    return lambda: adopt(log, receipt)


OPERATIONS: dict[str, tuple[Callable[[PartitionLog], Callable[[], object]], tuple[str, ...]]] = {
    "a round is swapped in": (
        lambda log: _swap(log, _rewritten(log, 3)),
        ALL,
    ),
    "retention": (lambda log: lambda: log.delete_segments([0, 6]), ALL),
    "delete records": (lambda log: lambda: log.delete_records(15), ALL),
    "a trim is noted": (lambda log: _after(log, 15, lambda: log.trimmed_to(15)), ALL),
    "a summary is taken over": (_summarised, ALL),
    "files are unlinked": (
        lambda log: _after(log, 15, lambda: log.sweep_deleted(1 << 62)),
        ALL,
    ),
    "a sync": (lambda log: log.flush, SYNCS),  # it begins with the active one's side files
}


def _after(log: PartitionLog, offset: int, do: Callable[[], object]) -> Callable[[], object]:
    log.delete_records(offset)
    return do


@pytest.mark.parametrize("name", OPERATIONS)
def test_appends_and_facts_go_on_meanwhile(log: PartitionLog, fs: _Stepping, name: str) -> None:
    operation, steps = OPERATIONS[name]
    do = operation(log)
    end, appended = log.log_end_offset, []

    def meanwhile() -> None:
        appended.append(append(log, batch()).base_offset)
        assert log.facts().log_end_offset == appended[-1] + 3
        assert log.read(appended[-1], 1).size

    fs.watch(do, meanwhile, steps)
    assert fs.stuck == []
    assert fs.steps  # else this shows nothing
    assert appended == [end + 3 * n for n in range(len(fs.steps))]
    assert set(appended) <= set(batches_of(log))
    check_sound(log)
    log.close()
    again = open_log(log.dir, clean_shutdown=True)
    assert batches_of(again) == batches_of(log)
    check_sound(again)


def test_facts_of_many_producers_are_copied_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in between may make a producer newer than the segments told of, never older."""
    log = open_log(tmp_path, config(internal_segment_bytes=10_000_000))
    count = 700
    for producer in range(count):
        append(log, batch(records=1, producer_id=producer, producer_epoch=0, base_sequence=0))
    appended: list[int] = []

    def copied(self: Producers, producer_ids: Sequence[int]) -> tuple[ProducerLast, ...]:
        """Another thread's append cannot begin now, but as soon as this part is copied."""
        found = last_batches(self, producer_ids)
        producer = count - 1 - len(appended)
        sent = batch(records=1, producer_id=producer, producer_epoch=0, base_sequence=1)
        appended.append(append(log, sent).base_offset)
        log.roll(NOW)
        return found

    last_batches = Producers.last_batches
    with monkeypatch.context() as patched:
        patched.setattr(Producers, "last_batches", copied)
        facts = log.facts()
    assert len(appended) == 3
    assert facts.log_end_offset == count
    known = {p.producer_id: p.last_data_offset for p in facts.producers}
    assert list(known) == list(range(count))
    assert all(known[n] == n or known[n] in appended for n in known)
    last = {p.producer_id: p.last_data_offset for p in log.facts().producers}
    assert {n for n in known if last[n] < facts.log_end_offset} <= {
        n for n in known if known[n] == last[n]
    }


def test_a_roll_meanwhile_is_kept(log: PartitionLog, fs: _Stepping) -> None:
    """What the appending side adds to the list of segments is not lost by a swap or a deletion."""
    replacement = _rewritten(log, 2)

    def meanwhile() -> None:
        append(log, batch())
        log.roll(NOW)

    fs.watch(_swap(log, replacement), meanwhile, ("rename",))
    fs.watch(lambda: log.delete_segments([0]), meanwhile, ("rename",))
    assert fs.stuck == []
    assert len(log.segments) >= len(fs.steps) + 2
    before = batches_of(log)
    assert len([offset for offset in before if offset >= 27]) == len(fs.steps)
    log.flush()
    assert log.recovery_point == log.log_end_offset
    check_sound(log)
    assert batches_of(open_log(log.dir, recovery_point=log.recovery_point)) == before
