"""The loop of an erasure, with files that come and go while it sleeps, without brokers.

Its requests to brokers are tested in test_served.py and tests/unit/cli/test_erase.py.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import RealFs
from lapse.client.connection import ConnectionLost
from lapse.client.login import PLAINTEXT
from lapse.client.settings import ConfigEntry
from lapse.lifecycle.erase import audit
from lapse.lifecycle.erase.check import check
from lapse.lifecycle.erase.drive import (
    HINT_SECONDS,
    PATIENCE_SECONDS,
    REST_SECONDS,
    Erasure,
    Places,
    Target,
    given,
)
from lapse.lifecycle.erase.findings import AuditUnit, Findings
from lapse.lifecycle.erase.inline import InlineAudits
from lapse.lifecycle.erase.order import FORMAT, Forced, Order, TopicOrder, load_order
from lapse.lifecycle.erase.proof import NEVER_SEEN, NOT_PROVEN, PROVEN, REMAINS, decode_report
from lapse.lifecycle.erase.replicas import Sort
from lapse.lifecycle.erase.search import Bound, hash_of, make_search
from lapse.lifecycle.erase.served import Broker, Network, Served
from lapse.lifecycle.erase.sign import unseal
from lapse.lifecycle.erase.table_files import EXPORT_STATE
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.lifecycle.erase.replica import FIRST, KEY, NOW, batch, others, written

NOBODY = Broker("127.0.0.1:1", PLAINTEXT)
LATER = "00000000000000000010.log"


class Sleeper(ManualClock):
    """Something happens each time it sleeps, as long as there is something."""

    def __init__(self, *happenings: Callable[[], object]) -> None:
        super().__init__(NOW)
        self.waiting = list(happenings)
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept.append(seconds)
        if self.waiting:
            self.waiting.pop(0)()


ReplicasOf = Callable[[str], Mapping[int, tuple[int, ...]]]


@dataclass(frozen=True)
class Gone(Network):
    """Brokers that do not listen; which of them have a topic's partitions is known all the same."""

    replicas_of: ReplicasOf

    def replicas(self, topic: str, topic_id: str) -> Mapping[int, tuple[int, ...]]:
        assert topic_id == ""
        return self.replicas_of(topic)


def one_broker(_: str) -> dict[int, tuple[int, ...]]:
    return {0: (0,)}


def erasure_of(
    replica: Path, clock: ManualClock, rest: Callable[[], None] = lambda: None,
    replicas_of: ReplicasOf = one_broker, tables: Sequence[Path] = (),
) -> tuple[Erasure, Target]:  # fmt: skip
    """An order about KEY below offset 100 in topic t."""
    topic_id = ""  # of no directory: all of them count from their first offset to their last
    part = TopicOrder("t", topic_id, (hash_of(KEY, "5a"),), (Bound(0, 100),))
    order = Order(FORMAT, "5a", NOW, None, (part,))
    search = make_search([KEY], tombstones_too=True)
    run = InlineAudits(search, clock, lambda _: None, threads=1)
    target = Target(part, (KEY,), search, "5a", run)
    in_tables = [(str(table), Sort.TABLE) for table in tables]
    places = Places(((str(replica), Sort.LOGS), *in_tables))
    return Erasure(Gone(NOBODY, replicas_of), order, [target], places, clock, rest), target


def run(
    replica: Path, clock: ManualClock, until_ms: int | None = None,
    replicas_of: ReplicasOf = one_broker,
) -> tuple[Target, list[str]]:  # fmt: skip
    erasure, target = erasure_of(replica, clock, replicas_of=replicas_of)
    said: list[str] = []
    erasure.look(target)
    erasure.run(RealFs(), replica, said.append, until_ms=until_ms, lags={})
    return target, said


def verdict_of(target: Target) -> str:
    assert target.last is not None
    return target.last.verdict.state


def test_what_is_in_tables_alone_is_said_at_once(tmp_path: Path) -> None:
    """Rounds do nothing about it; another table's rows are not looked at."""
    written(tmp_path / "logs" / "t-0" / FIRST, batch(3, b"other"))
    tombstone = written(tmp_path / "logs" / "t-0" / LATER, batch(10, KEY, value=None))
    table, of_u = tmp_path / "table", tmp_path / "of u"
    for folder, topic in ((table, "t"), (of_u, "u")):
        rows = folder / "partition=0" / "a.parquet"
        rows.parent.mkdir(parents=True)
        pq.write_table(pa.table({"key": [KEY]}), rows)
        written(folder / EXPORT_STATE, json.dumps({"topic": topic}).encode())
    clock = Sleeper((table / "partition=0" / "a.parquet").unlink, tombstone.unlink)
    erasure, target = erasure_of(tmp_path / "logs", clock, tables=(table, of_u))
    said: list[str] = []
    erasure.look(target)
    erasure.run(RealFs(), tmp_path, said.append, until_ms=None, lags={})
    assert said == [
        f"t: the logs have no value any more; `lapse export` again to {table}",
        "t: 0 records and 1 tombstones remain",
        "t: nothing remains",
    ]
    assert verdict_of(target) == PROVEN


@dataclass(frozen=True)
class Obliging(Gone):
    """Brokers that set what they are asked to; `done`: what, and when by the clock, in seconds."""

    clock: ManualClock
    done: list[tuple[str, float]]

    def force(self, topic: str, forced: Forced) -> bool:
        self.done.append((f"{forced.value} for {topic}", self.clock.monotonic()))
        return True

    def put_back(self, topic: str, forced: Forced) -> bool:
        self.done.append((f"{forced.before} for {topic}", self.clock.monotonic()))
        return True


def with_rows(folder: Path) -> Path:
    """A table of topic t that has KEY."""
    rows = folder / "partition=0" / "a.parquet"
    rows.parent.mkdir(parents=True)
    pq.write_table(pa.table({"key": [KEY]}), rows)
    written(folder / EXPORT_STATE, json.dumps({"topic": "t"}).encode())
    return folder


@pytest.mark.parametrize("more", ["table", "what was cut off"])
@pytest.mark.parametrize("in_log", [True, False])
def test_rounds_are_brought_on_for_what_rounds_remove_alone(
    more: str, in_log: bool, tmp_path: Path
) -> None:
    """Until the next export of a table it may be days, with a topic cleaned each second."""
    value, tables = tmp_path / "t-0" / f"{FIRST}.deleted", list[Path]()
    written(tmp_path / "t-0" / LATER, others(10))
    if more == "table":
        tables.append(with_rows(tmp_path / "table"))
    else:
        written(tmp_path / "t-0" / ".lapse" / "cut-00000000000000000000-512", batch(6, KEY))
    clock = Sleeper()
    if in_log:
        written(value, batch(0, KEY))
        clock.waiting += [lambda: None, value.unlink]
    erasure, target = erasure_of(tmp_path, clock, tables=tables)
    brokers = Obliging(NOBODY, one_broker, clock, [])
    erasure = Erasure(brokers, erasure.order, [target], erasure._places, clock)
    lag = ConfigEntry("max.compaction.lag.ms", "9223372036854775807", 5, False, False, 0, (), None)
    lags = {"t": Served("t", "", (), {0: (0,)}, {lag.name: lag})}
    erasure.look(target)
    erasure.run(RealFs(), tmp_path, lambda _: None, until_ms=NOW + 86_400_000, lags=lags)
    assert verdict_of(target) == REMAINS
    assert [what for what, _ in brokers.done] == ["1000 for t", "None for t"] * in_log
    assert all(seconds < 5 for _, seconds in brokers.done)


def test_it_waits_until_values_and_then_tombstones_are_gone(tmp_path: Path) -> None:
    value = written(tmp_path / "t-0" / (FIRST + ".deleted"), batch(0, KEY))
    tombstone = written(tmp_path / "t-0" / FIRST, batch(3, KEY, value=None))
    written(tmp_path / "t-0" / LATER, others(10))
    clock = Sleeper(value.unlink, lambda: None, tombstone.unlink)
    target, said = run(tmp_path, clock)
    assert verdict_of(target) == PROVEN
    assert said == [
        "t: 0 records and 1 tombstones remain", "t: nothing remains",
    ]  # fmt: skip
    assert clock.waiting == []


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_what_was_proven_gone_and_is_found_again_is_late(
    tmp_path: Path, *, is_cut_short: bool
) -> None:
    """In a replica that was not given before, say: it counts from when it is proven anew."""
    value = written(tmp_path / "t-0" / (FIRST + ".deleted"), batch(0, KEY))
    written(tmp_path / "t-0" / LATER, others(10))
    erasure, target = erasure_of(tmp_path, Sleeper(value.unlink))
    before_ms = NOW - 5
    target.part = replace(target.part, values_proven_ms=before_ms, proven_ms=before_ms)
    erasure.order = erasure.order.with_topic(target.part)
    erasure.look(target)
    until_ms = NOW if is_cut_short else None
    erasure.run(RealFs(), tmp_path, lambda _: None, until_ms=until_ms, lags={})
    kept = load_order(tmp_path)
    assert kept is not None
    assert (kept.topics[0].values_proven_ms, kept.topics[0].proven_ms) == (None, None)
    if is_cut_short:
        return
    erasure.end(RealFs(), tmp_path, Ed25519PrivateKey.generate())
    assert verdict_of(target) == PROVEN
    assert target.part.values_proven_ms == target.part.proven_ms
    assert (target.part.proven_ms or 0) > NOW


def test_the_last_look_reads_everything_anew(tmp_path: Path) -> None:
    """A segment that only grew was not read again before."""
    value = written(tmp_path / "t-0" / (FIRST + ".deleted"), batch(0, KEY))
    active = written(tmp_path / "t-0" / LATER, others(10))

    def both() -> None:
        value.unlink()
        with active.open("ab") as file:
            file.write(batch(20, KEY, value=None))

    clock = Sleeper(both, lambda: written(active, others(10)))
    target, said = run(tmp_path, clock)
    assert verdict_of(target) == PROVEN
    assert clock.waiting == []
    assert "t: 0 records and 1 tombstones remain" in said


def test_it_ends_when_its_time_is_up(tmp_path: Path) -> None:
    written(tmp_path / "t-0" / FIRST, batch(0, KEY), batch(3, KEY, value=None))
    clock = Sleeper()
    target, _ = run(tmp_path, clock, until_ms=NOW + 5000)
    assert verdict_of(target) == REMAINS
    assert clock.now_ms() == NOW + 5000
    assert clock.slept[0] < clock.slept[2]  # less and less often


def test_who_sleeps_for_long_lets_go_of_what_looking_takes(tmp_path: Path) -> None:
    written(tmp_path / "t-0" / FIRST, batch(0, KEY), batch(3, KEY, value=None))
    clock = Sleeper()
    rested: list[int] = []
    erasure, target = erasure_of(tmp_path, clock, lambda: rested.append(len(clock.slept)))
    erasure.look(target)
    erasure.run(RealFs(), tmp_path, lambda _: None, until_ms=NOW + 60_000, lags={})
    assert rested == [n for n, pause in enumerate(clock.slept) if pause >= REST_SECONDS] != []
    assert rested[0] > 2, "not while something may still come at once"


def test_what_does_not_go_is_told_once_and_waited_for(tmp_path: Path) -> None:
    value = written(tmp_path / "t-0" / (FIRST + ".deleted"), batch(0, KEY))
    clock = Sleeper(*[lambda: None] * 60, value.unlink)
    target, said = run(tmp_path, clock)
    assert clock.now_ms() > NOW + 1000 * HINT_SECONDS
    assert [line for line in said if "lapse explain t" in line] == [
        "t: nothing goes; `lapse explain t` says what rounds wait for"
    ]
    assert verdict_of(target) == PROVEN


def test_doubts_that_stay_end_it(tmp_path: Path) -> None:
    """Bytes that cannot be read, say: nothing that a round does will change that."""
    written(tmp_path / "t-0" / FIRST, others(0))
    (tmp_path / "t-0" / "link").symlink_to("nowhere")
    clock = Sleeper()
    target, said = run(tmp_path, clock)
    assert verdict_of(target) == NOT_PROVEN
    assert NOW + 1000 * PATIENCE_SECONDS < clock.now_ms() < NOW + 2000 * PATIENCE_SECONDS
    link = tmp_path / "t-0" / "link"
    assert said == [
        f"t: nothing remains, but {link} a link to what is not there; looking again for 3 minutes"
    ]


def test_what_was_seen_while_it_waited_is_kept(tmp_path: Path) -> None:
    """A key that comes and goes is none that was never there, for the next run neither."""
    written(tmp_path / "t-0" / FIRST, others(0))
    link = tmp_path / "t-0" / "link"
    link.symlink_to("nowhere")
    later = tmp_path / "t-0" / "00000000000000000100.log"
    clock = Sleeper(lambda: written(later, batch(100, KEY)), later.unlink, link.unlink)
    erasure, target = erasure_of(tmp_path, clock)
    target.part = replace(target.part, seen=())
    erasure.order = erasure.order.with_topic(target.part)
    erasure.look(target)
    assert target.part.never_seen == (0,)
    erasure.run(RealFs(), tmp_path, lambda _: None, until_ms=None, lags={})
    assert verdict_of(target) == PROVEN
    kept = load_order(tmp_path)
    assert kept is not None
    assert kept.topics[0].seen == target.part.keys


def test_an_order_about_nothing_ends_at_once_and_says_so(tmp_path: Path) -> None:
    written(tmp_path / "t-0" / FIRST, others(0))
    erasure, target = erasure_of(tmp_path, Sleeper())
    target.part = replace(target.part, seen=())
    erasure.order = erasure.order.with_topic(target.part)
    erasure.look(target)
    said: list[str] = []
    erasure.run(RealFs(), tmp_path, said.append, until_ms=None, lags={})
    assert verdict_of(target) == NEVER_SEEN
    assert said[0].startswith("t: 1 of 1 keys are in no file (key 1)")


def test_who_is_killed_with_a_proof_was_in_time_when_run_again(tmp_path: Path) -> None:
    """By the order it is proven before there is a report that says so, wherever the end is cut."""
    written(tmp_path / "t-0" / FIRST, others(0))
    proofs = 0
    for die_at in range(1, 12):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        erasure, target = erasure_of(tmp_path, Sleeper())
        erasure.look(target)
        with contextlib.suppress(Crashed):
            erasure.end(CrashFs(RealFs(), die_at), folder, Ed25519PrivateKey.generate())
        kept = load_order(folder)
        if (folder / "t.proof.json").exists():
            proofs += 1
            assert kept is not None
            assert kept.topics[0].proven_ms == NOW
    assert proofs > 2


class Unsyncable(RealFs):
    """A disk that fails, or a file system that has nothing to sync in a folder."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fsync_dir(self, path: Path) -> None:
        if path.name == "t-0":
            raise StorageError(f"syncing {path}") from OSError(self.number, "")


@pytest.mark.parametrize(("number", "state"), [(errno.EIO, NOT_PROVEN), (errno.EINVAL, PROVEN)])
def test_what_may_come_back_after_a_power_cut_is_not_proven_gone(
    tmp_path: Path, number: int, state: str
) -> None:
    written(tmp_path / "t-0" / FIRST, others(0))
    erasure, target = erasure_of(tmp_path, Sleeper())
    erasure.look(target)
    erasure.run(Unsyncable(number), tmp_path, lambda _: None, until_ms=NOW + 1000, lags={})
    assert verdict_of(target) == state
    assert all("may come back after a power cut" in doubt for doubt in target.doubts)


def test_a_sync_that_fails_again_and_again_ends_it(tmp_path: Path) -> None:
    """Each step looks twice, once without the doubt: that is no change."""
    written(tmp_path / "t-0" / FIRST, others(0))
    clock = Sleeper()
    erasure, target = erasure_of(tmp_path, clock)
    erasure.look(target)
    limit_ms = NOW + 5000 * PATIENCE_SECONDS
    erasure.run(Unsyncable(errno.EIO), tmp_path, lambda _: None, until_ms=limit_ms, lags={})
    assert verdict_of(target) == NOT_PROVEN
    assert NOW + 1000 * PATIENCE_SECONDS < clock.now_ms() < NOW + 2000 * PATIENCE_SECONDS


@pytest.mark.parametrize("jump_ms", [3_600_000, -7 * 86_400_000])
def test_a_clock_that_is_set_meanwhile_changes_no_patience(tmp_path: Path, jump_ms: int) -> None:
    written(tmp_path / "t-0" / FIRST, others(0))
    (tmp_path / "t-0" / "link").symlink_to("nowhere")
    clock = Sleeper(lambda: None, lambda: clock.jump(jump_ms))
    target, _ = run(tmp_path, clock)
    assert verdict_of(target) == NOT_PROVEN
    assert PATIENCE_SECONDS < clock.monotonic() < 2 * PATIENCE_SECONDS


def test_an_error_of_a_moment_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, say: it was remembered until the process ended, not proven."""
    written(tmp_path / "t-0" / FIRST, others(0))
    open_it, fails = os.open, iter([OSError(errno.EMFILE, "")])

    def opened(path: Any, *more: Any, **named: Any) -> int:
        if str(path).endswith(FIRST) and (error := next(fails, None)):
            raise error
        return open_it(path, *more, **named)

    monkeypatch.setattr(audit.os, "open", opened)
    target, _ = run(tmp_path, Sleeper())
    assert verdict_of(target) == PROVEN
    assert next(fails, None) is None


MOVED = "t-0 has 2 replicas (on brokers 0, 7), and 1 of the given directories have it"


def test_a_replica_that_came_while_it_waited_is_missed(tmp_path: Path) -> None:
    """The erasure asks brokers for the replicas when the files are empty, not only at the start."""
    value = written(tmp_path / "t-0" / (FIRST + ".deleted"), batch(0, KEY))
    written(tmp_path / "t-0" / LATER, others(10))
    clock = Sleeper(value.unlink)
    target, said = run(tmp_path, clock, replicas_of=lambda _: {0: (0, 7)})
    assert verdict_of(target) == NOT_PROVEN
    assert target.last is not None
    assert target.last.verdict.reasons == (MOVED,)
    assert said[-1] == f"t: nothing remains, but {MOVED}"
    assert NOW + 1000 * PATIENCE_SECONDS < clock.now_ms() < NOW + 2000 * PATIENCE_SECONDS


def test_a_check_of_a_proof_knows_what_the_brokers_said(tmp_path: Path) -> None:
    """No file says it: with the keys and without, such a report was proven by its check."""
    written(tmp_path / "t-0" / FIRST, others(0))
    key, clock = Ed25519PrivateKey.generate(), Sleeper()
    cases: list[tuple[RealFs, ReplicasOf, str]] = [
        (RealFs(), lambda _: {0: (0, 7)}, NOT_PROVEN), (RealFs(), no_answer, NOT_PROVEN),
        (Unsyncable(errno.EIO), one_broker, NOT_PROVEN), (RealFs(), one_broker, PROVEN),
    ]  # fmt: skip
    for n, (fs, replicas_of, state) in enumerate(cases):
        folder = tmp_path / str(n)
        folder.mkdir()
        erasure, target = erasure_of(tmp_path, clock, replicas_of=replicas_of)
        erasure.look(target)
        erasure.run(fs, folder, lambda _: None, until_ms=clock.now_ms() + 1000, lags={})
        [proof] = erasure.end(RealFs(), folder, key)
        report = decode_report(unseal(proof.read_bytes(), "p").body, "p")
        assert report.verdict.state == state
        for run_units in (target.run, None):
            now = check(report, run_units, clock, lambda _: None).verdict
            assert now == report.verdict


def no_answer(_: str) -> dict[int, tuple[int, ...]]:
    raise ConnectionLost("no broker")


def test_a_reassignment_that_ends_is_waited_for(tmp_path: Path) -> None:
    """And so is a broker that does not answer."""
    written(tmp_path / "t-0" / FIRST, others(0))
    asked: list[str] = []

    def replicas_of(topic: str) -> dict[int, tuple[int, ...]]:
        asked.append(topic)
        if len(asked) == 1:
            raise ConnectionLost("no broker")
        return {0: (0, 7)} if len(asked) < 4 else {0: (0,)}

    target, said = run(tmp_path, Sleeper(), replicas_of=replicas_of)
    assert verdict_of(target) == PROVEN
    assert len(asked) == 4
    assert said == [
        "t: nothing remains, but the brokers do not say which replicas topic t has: no broker",
        f"t: nothing remains, but {MOVED}", "t: nothing remains",
    ]  # fmt: skip


def test_a_replica_that_goes_while_it_is_read_for_the_last_time_is_missed(tmp_path: Path) -> None:
    """What took its place was not looked at."""
    written(tmp_path / "t-0" / FIRST, others(0))
    written(tmp_path / "t-1" / FIRST, others(0))

    def replicas_of(_: str) -> dict[int, tuple[int, ...]]:
        return {0: (0,), 1: (0,)}

    erasure, target = erasure_of(tmp_path, Sleeper(), replicas_of=replicas_of)
    search_all, moved = target.run, tmp_path.with_name("moved")

    def audits(units: Sequence[AuditUnit]) -> Iterable[Findings]:
        found = list(search_all(units))
        if units and target.last is not None and not moved.exists():
            (tmp_path / "t-1").rename(moved)
        return found

    target.run = audits
    erasure.look(target)
    erasure.run(RealFs(), tmp_path, lambda _: None, until_ms=NOW + 1000, lags={})
    assert verdict_of(target) == NOT_PROVEN
    [doubt] = target.doubts
    assert doubt.startswith("t-1 has 1 replicas (on brokers 0), and 0 of the given ")


def test_an_order_takes_topics_in_and_knows_one_that_was_made_again() -> None:
    served = Served("t", "aa", (Bound(0, 7),), {0: (0,)}, {})
    empty = Order(FORMAT, "5a", NOW, None, ())
    order = given(empty, [served], {"t": [KEY]})
    part = TopicOrder("t", "aa", (hash_of(KEY, "5a"),), (Bound(0, 7),), seen=())
    assert order.topics == (part,)
    # Where it ends by now does not count.
    later = Served("t", "aa", (Bound(0, 9),), {0: (0,)}, {})
    assert given(order, [later], {"t": [KEY]}) == order
    with pytest.raises(ConfigError, match="topic t is not the one"):
        given(order, [Served("t", "bb", (), {}, {})], {"t": [KEY]})
